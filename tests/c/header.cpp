// The header as C++: included twice, its structs made and its calls named with C linkage.
#include <gdrcore.h>
#include <gdrcore.h>

#include <type_traits>

static_assert(std::is_standard_layout<gdrc_send_wr>::value, "gdrc_send_wr");
static_assert(std::is_trivially_copyable<gdrc_qp_attr>::value, "gdrc_qp_attr");
static_assert(sizeof(gdrc_wc) == 48, "gdrc_wc");
static_assert(!std::is_convertible<gdrc_mr, gdrc_qp>::value, "handles of two types do not mix");

using post_send = int (*)(gdrc_context *, gdrc_qp, const gdrc_send_wr *, const gdrc_send_wr **);
static_assert(std::is_same<decltype(&gdrc_post_send), post_send>::value, "gdrc_post_send");

int main() {
    gdrc_config config{};
    config.struct_size = sizeof config;
    struct gdrc_async_event event {};
    return gdrc_config_default(&config) == 0 && config.max_qp &&
                   gdrc_get_async_event(nullptr, &event) < 0
               ? 0
               : 1;
}
