#pragma once
// The CPU device as a plug-in: its one C entry. Linked into our program, or loaded as a module.

#include "compute/device/device_abi.h"

#ifdef __cplusplus
extern "C" {
#endif

__attribute__((visibility("default"))) const td_plugin* tandem_plugin_cpu(void);

#ifdef __cplusplus
}
#endif
