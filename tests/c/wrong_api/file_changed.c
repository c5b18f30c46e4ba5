// SPDX-License-Identifier: MIT OR Apache-2.0
/* The buffer of a SEND, in a region that a descriptor names, is filled with the next message before
 * its completion. */
#include "wrong_api.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

int main(void)
{
    begin(16, 64);
    int fd = memfd_create("messages", MFD_ALLOW_SEALING);
    CHECK(fd >= 0 && ftruncate(fd, 4096) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    char *file = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(file != MAP_FAILED);
    gdrc_memory m = {.struct_size = sizeof m,
                     .kind = GDRC_MEMORY_HOST,
                     .addr = (uintptr_t)file,
                     .length = 4096,
                     .flags = GDRC_MEMORY_FLAG_SHARED,
                     .fd = fd};
    gdrc_mr shared;
    gdrc_mr_attr of_file = {.struct_size = sizeof of_file};
    CHECK(gdrc_mr_reg_memory(ctx, pd, &m, GDRC_ACCESS_LOCAL_WRITE, &shared, &of_file) == 0);
    const uint32_t send = GDRC_WR_SEND, signaled = GDRC_SEND_SIGNALED;
    receive(b, 4096, 512, 1);
    receive(b, 8192, 512, 2);
    memset(file, 1, 64);
    CHECK(request(a, of_file.lkey, send, file, 64, NULL, 0, signaled) == 0); /* WRONG */
    memset(file, 2, 64);
    CHECK(request(a, of_file.lkey, send, file, 64, NULL, 0, signaled) == 0);
    poll_good(4);
    CHECK(gdrc_mr_dereg(ctx, shared) == 0);
    return end();
}
