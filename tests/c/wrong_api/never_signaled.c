// SPDX-License-Identifier: MIT OR Apache-2.0
/* No request asks for a completion, so a NIC's queue of 16 is full after 16. */
#include "wrong_api.h"

int main(void)
{
    begin(16, 64);
    for (int i = 0; i < 100; i++)
        if (!write_when_free(0)) /* WRONG */
            break;
    return end();
}
