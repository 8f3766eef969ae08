#include "sharing/liveliness.h"

#include "board/atomics.h"
#include "board/reads.h"
#include "board/tracks.h"

int gate_client_lively(const gate_board *board, const gate_client *client, uint64_t now) {
    uint64_t lease = gate_board_lease(board), request = 4 * gate_client_alone(client);
    return gate_within(now, LOAD(client->touched), request > lease ? request : lease);
}

int gate_client_at_work(const gate_board *board, const gate_client *client, uint64_t now) {
    return gate_client_lively(board, client, now) && gate_client_running(client);
}
