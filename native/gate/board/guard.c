#define _GNU_SOURCE
#include "board/guard.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "board/atomics.h"

enum { BOARDS = 64 }; /* of one process; programs have one */

static struct guarded {
    gate_board *board; /* NULL: a free entry */
    int lost;
    int *word, value;
    const char *line;
} boards[BOARDS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct sigaction before; /* whoever had the signal */
static int installed;

static struct guarded *entry_of(const void *address) {
    for (int index = 0; index < BOARDS; index++) {
        const char *begin = (const char *)LOAD(boards[index].board);
        if (begin && (const char *)address >= begin && (const char *)address < begin + sizeof(gate_board))
            return &boards[index];
    }
    return NULL;
}

/* the handler: nothing but system calls */

static void tell(const struct guarded *entry) {
    if (!entry->word) return;
    STORE(*entry->word, entry->value);
    if (write(STDERR_FILENO, entry->line, strlen(entry->line)) < 0) return; /* nobody to say it to */
}

/* Other threads that come here meanwhile try again until it is done. 0: it cannot be helped. */
static int replace(struct guarded *entry) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    if (__atomic_exchange_n(&entry->lost, 1, __ATOMIC_ACQ_REL)) return 1;
    if (mmap(entry->board, sizeof *entry->board, PROT_READ | PROT_WRITE, flags, -1, 0) == MAP_FAILED) return 0;
    for (int place = 0; place < GATE_CLIENTS; place++) STORE(entry->board->clients[place].open, 1);
    tell(entry);
    return 1;
}

/* A fault comes again by itself when we return, a signal that was sent does not. */
static void end_as_usual(int number, int sent) {
    struct sigaction usual = {.sa_handler = SIG_DFL};
    sigaction(number, &usual, NULL);
    if (sent) raise(number);
}

/* Handlers that pass on to us in turn (a traceback is printed, the signal raised again) end there. */
static void pass_on(int number, siginfo_t *info, void *context) {
    static volatile sig_atomic_t inside;
    int sent = info->si_code <= 0 || info->si_code == BUS_MCEERR_AO;
    if (before.sa_handler == SIG_IGN && sent) return;
    if (before.sa_handler == SIG_IGN || before.sa_handler == SIG_DFL || (sent && inside)) {
        end_as_usual(number, sent);
        return;
    }
    inside = 1;
    if (before.sa_flags & SA_SIGINFO)
        before.sa_sigaction(number, info, context);
    else
        before.sa_handler(number);
    inside = 0;
}

static void on_bus_error(int number, siginfo_t *info, void *context) {
    int problem = errno;
    struct guarded *entry = info->si_code > 0 ? entry_of(info->si_addr) : NULL;
    if (!entry || !replace(entry)) pass_on(number, info, context);
    errno = problem;
}

/* who is guarded */

static void install(void) {
    struct sigaction now, ours = {.sa_sigaction = on_bus_error};
    /* Not deferred: what a handler raises comes while it is in it. */
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART | SA_NODEFER;
    if (sigaction(SIGBUS, NULL, &now) != 0 || now.sa_sigaction == on_bus_error) return;
    before = now;
    sigaction(SIGBUS, &ours, NULL);
}

static int entered(gate_board *board) {
    for (int index = 0; index < BOARDS; index++) {
        if (boards[index].board) continue;
        boards[index] = (struct guarded){0};
        STORE(boards[index].board, board);
        return 1;
    }
    return 0;
}

int gate_guard_begins(gate_board *board) {
    pthread_mutex_lock(&lock);
    int guarded = entered(board);
    if (guarded) install();
    installed |= guarded;
    pthread_mutex_unlock(&lock);
    return guarded;
}

void gate_guard_ends(const gate_board *board) {
    pthread_mutex_lock(&lock);
    struct guarded *entry = entry_of(board);
    if (entry) STORE(entry->board, NULL);
    pthread_mutex_unlock(&lock);
}

void gate_guard_stays(void) {
    if (pthread_mutex_trylock(&lock) != 0) return;
    if (installed) install();
    pthread_mutex_unlock(&lock);
}

int gate_guard_lost(const gate_board *board) {
    const struct guarded *entry = entry_of(board);
    return entry && LOAD(entry->lost);
}

void gate_guard_tells(const gate_board *board, int *word, int value, const char *line) {
    struct guarded *entry = entry_of(board);
    if (!entry) return;
    entry->value = value;
    entry->line = line;
    STORE(entry->word, word);
    if (LOAD(entry->lost)) tell(entry);
}

void gate_guard_unblock(void) {
    sigset_t faults;
    sigemptyset(&faults);
    sigaddset(&faults, SIGBUS);
    pthread_sigmask(SIG_UNBLOCK, &faults, NULL);
}
