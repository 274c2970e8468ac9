#pragma once
// Weights as this device keeps them: linears as panels, tables and vectors plainly.

#include <cstdint>

#include "base/result.h"
#include "compute/device/device_abi.h"
#include "compute/kernels/pack_weights.h"
#include "compute/tensor/dtype.h"

namespace tandem::cpu {

class Team;

Result<tensor::DType> to_dtype(uint32_t td_dtype_value);

// The panels of a TD_WEIGHT_LINEAR. kInvalidArgument when its parts differ in type or the type is unknown.
Result<kernels::PanelLayout> panel_layout(const td_weight_desc& desc);

Result<uint64_t> packed_size(const td_weight_desc& desc);

// Writes packed_size() bytes; linears are packed by the whole team.
Status pack(const td_weight_desc& desc, void* host, Team& team);

}  // namespace tandem::cpu
