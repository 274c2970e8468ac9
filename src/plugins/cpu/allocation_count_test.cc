// Counts this program's C++ allocations; under ThreadSanitizer, which has operators of its own, all of malloc's.
// Nothing else is here: where the compiler sees both, it inlines one half of a pair of new and delete and warns about
// the other.

#include <stdlib.h>

#include <atomic>
#include <cstddef>
#include <new>

#include "plugins/cpu/allocation_count_for_test.h"

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TANDEM_HAS_TSAN
#endif
#endif

namespace {

std::atomic<uint64_t> count{0};

}  // namespace

#ifdef TANDEM_HAS_TSAN

extern "C" void __sanitizer_malloc_hook(const volatile void* /*memory*/, size_t /*size*/) { count.fetch_add(1); }

#else

namespace {

void* counted(size_t size_bytes, size_t alignment) {
  count.fetch_add(1);
  const size_t least = size_bytes == 0 ? 1 : size_bytes;
  void* memory = alignment <= alignof(std::max_align_t)
                     ? malloc(least)
                     : aligned_alloc(alignment, (least + alignment - 1) / alignment * alignment);
  if (memory == nullptr) abort();
  return memory;
}

}  // namespace

void* operator new(size_t size) { return counted(size, 0); }
void* operator new[](size_t size) { return counted(size, 0); }
void* operator new(size_t size, std::align_val_t alignment) { return counted(size, static_cast<size_t>(alignment)); }
void* operator new[](size_t size, std::align_val_t alignment) { return counted(size, static_cast<size_t>(alignment)); }
void operator delete(void* memory) noexcept { free(memory); }
void operator delete[](void* memory) noexcept { free(memory); }
void operator delete(void* memory, size_t) noexcept { free(memory); }
void operator delete[](void* memory, size_t) noexcept { free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { free(memory); }
void operator delete[](void* memory, size_t, std::align_val_t) noexcept { free(memory); }

#endif

namespace tandem::cpu {

uint64_t num_allocations() { return count.load(); }

}  // namespace tandem::cpu
