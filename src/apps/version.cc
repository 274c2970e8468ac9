#include "apps/version.h"

#include <fmt/format.h>

#include "compute/device/device.h"
#include "plugins/cpu/cpu_plugin.h"
#include <version_stamp.h>  // made at each build by cmake/version.cmake

namespace tandem::apps {
namespace {

// As the device names it, so that it cannot differ from what stands in the cache's file names.
std::string pack_layout() {
  auto plugin = device::Plugin::from_entry(tandem_plugin_cpu);
  if (!plugin) return "unknown";
  auto device = device::Device::open(*plugin, 0, td_device_options{1, 0, ""});
  return device ? std::string(device->properties().pack_layout) : "unknown";
}

}  // namespace

std::string program_version() { return TANDEM_VERSION; }

std::string version_text() {
  return fmt::format("tandem {}\ncommit {}\nabi {}.{}\nprotocol {}\npacked-layout {}\n", TANDEM_VERSION, TANDEM_COMMIT,
                     TD_ABI_MAJOR, TD_ABI_MINOR, kProtocolVersion, pack_layout());
}

}  // namespace tandem::apps
