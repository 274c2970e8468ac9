// libFuzzer: the bytes choose the configuration and the operations of an OpDriver.

#include <cstddef>
#include <cstdint>

#include "serve/sched/op_driver.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  size_t next = 0;
  const tandem::sched::OpDriver::Source source = [&](uint32_t below) -> uint32_t {
    return next < size ? bytes[next++] % below : 0;
  };
  tandem::sched::OpDriver driver(tandem::sched::OpDriver::random_config(source), source);
  // The exhausted source only submits; drain() then runs what is there to its end.
  for (uint32_t num_ops = 0; next < size && num_ops < 2000; ++num_ops) driver.run_op();
  driver.drain();
  return 0;
}
