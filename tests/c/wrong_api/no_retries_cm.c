// SPDX-License-Identifier: MIT OR Apache-2.0
/* retry_count of a connection by the connection manager is 0. */
#include "wrong_api.h"

int main(void)
{
    begin(16, 64);
    gdrc_qp c = make_qp(cq, 16);
    gdrc_device_attr attr = {.struct_size = sizeof attr};
    CHECK(gdrc_device_query(ctx, &attr) == 0);
    gdrc_ah_attr to = {0};
    memcpy(to.dgid, attr.gid, sizeof to.dgid);
    gdrc_cm_conn_param param = {.struct_size = sizeof param,
                                .qp_type = GDRC_QPT_RC,
                                .flags = GDRC_CM_CONN_EXACT,
                                .rnr_retry = 7,
                                .ack_timeout = 14};
    gdrc_cm_id id;
    int rc = gdrc_cm_connect(ctx, &to, 0x0106, 7471, c, &param, &id); /* WRONG */
    CHECK(rc == 0);
    CHECK(gdrc_cm_destroy(ctx, id) == 0 && gdrc_qp_destroy(ctx, c) == 0);
    return end();
}
