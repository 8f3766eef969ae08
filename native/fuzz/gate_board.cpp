// A fuzzer of the gate's board: any bytes are a board, on which every function is called that clients call, and the
// policies decide by what they see there. Each must come back, within the board's memory.
//
// native/fuzz/run.py builds and runs it, with the gate's own C.
#include <sys/mman.h>
#include <unistd.h>

#include <random>
#include <string>

#include "board/board.h"
#include "board/guard.h"
#include "board/knobs.h"
#include "board/places.h"
#include "board/reads.h"
#include "board/tracks.h"
#include "board/waiting.h"
#include "sharing/fences.h"
#include "sharing/lessons.h"
#include "sharing/pacing.h"
#include "sharing/scene.h"

#include "drive.h"
#include "must.h"

namespace {

constexpr std::uint64_t kNow = 1'000'000'000'000;

// A board whose head and places repeat the input: places with sensible states are reached soon.
void fill(gate_board& board, const unsigned char* data, std::size_t size) {
  auto* bytes = reinterpret_cast<unsigned char*>(&board);
  for (std::size_t at = 0; size && at < sizeof board; at += size)
    std::memcpy(bytes + at, data, std::min(size, sizeof board - at));
  for (int place = 0; place < GATE_CLIENTS; ++place) {
    gate_client& client = board.clients[place];
    if (client.pad[0] & 1) client.state = client.pad[0] % 8;
    if (client.pad[0] & 2) client.kind = client.pad[0] >> 3 & 1;
    if (client.pad[0] & 16) client.touched = kNow - client.pad[0] % 1'000'000;
  }
}

void ask(gate_board* board, int place, const gate_work& work) {
  gate_knobs knobs = gate_board_knobs(board);
  const gate_scene scene = gate_board_look(board, place, kNow, &knobs);
  for (std::uint32_t policy = 0; policy <= GATE_POLICIES; ++policy) {
    knobs.policy = policy;
    MUST(gate_decide(&knobs, &scene, &work) < GATE_VERDICTS);
  }
  gate_board_my_turn(board, place, kNow);
  gate_board_pass_turn(board, place);
  MUST(gate_board_window(board) > 0);
  for (const gate_client& other : board->clients) gate_board_asked(board, place, &other, kNow, 8);
}

void live(gate_board* board, int place, const gate_work& work) {
  gate_client* mine = &board->clients[place];
  gate_pacing pacing{5, 1, 0};
  gate_track* track = gate_track_take(mine, place % GATE_TRACKS);
  gate_track_launch(track, work.duration);
  gate_client_running(mine);
  gate_board_charge(board, kNow, work.kind, work.duration);
  gate_board_request_begins(board, place, work.duration);
  gate_board_request_ended(board, place, work.duration, work.sms);
  gate_board_pace(board, place, kNow, 20'000'000, &pacing);
  MUST(pacing.permitted - 1 <= 4 && pacing.credit <= GATE_HOUR);
}

void settle(gate_board* board) {
  gate_board_holds(board);
  gate_board_paced(board);
  gate_board_settle(board, gate_board_settle(board, 0));
  gate_board_watch(board, kNow);
  const int place = gate_board_join(board, GATE_LATENCY, "fuzz");
  MUST(place < GATE_CLIENTS);
  if (place >= 0) gate_board_leave(board, place);
  gate_board_vacate_own(board);
  gate_board_changed(board);
  gate_board_wait(board, board->changes, 1000);
  const gate_knobs knobs = gate_board_knobs(board);
  board->knobs_version &= ~1u;  // a writer that has died is waited for
  gate_board_set_knobs(board, &knobs);
}

// The file is cut short while the board is in use: what is read is nothing, and all goes on.
void cut(const unsigned char* data, std::size_t size) {
  const int file = memfd_create("board", 0);
  MUST(file >= 0 && ftruncate(file, sizeof(gate_board)) == 0);
  void* at = mmap(nullptr, sizeof(gate_board), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  MUST(at != MAP_FAILED);
  auto* board = static_cast<gate_board*>(at);
  MUST(gate_guard_begins(board));
  fill(*board, data, size);
  MUST(ftruncate(file, static_cast<off_t>(data[0] * 2048)) == 0);
  close(file);
  ask(board, data[0] % GATE_CLIENTS, {1000, 1, 1});
  settle(board);
  MUST(gate_guard_lost(board) && gate_client_open(&board->clients[GATE_CLIENTS - 1]));
  gate_board_close(board);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  if (size < 8) return 0;
  static gate_board board;
  fill(board, data, size);
  const gate_work work{data[1] * 10'000ull, data[2], data[3] % static_cast<std::uint32_t>(GATE_KINDS)};
  for (int place = data[0] % 4; place < GATE_CLIENTS; place += 5) {
    ask(&board, place, work);
    live(&board, place, work);
  }
  settle(&board);
  if (data[4] % 16 == 0) cut(data, size);
  return 0;
}

namespace {

std::string make_input(std::mt19937& random) {
  std::string input(random() % 2000 + 8, '\0');
  for (char& byte : input) byte = static_cast<char>(random() % 4 ? random() : random() % 3 - 1);
  return input;
}

}  // namespace
