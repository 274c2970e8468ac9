#include "api/openai/text_worker.h"

namespace tandem::openai {

TextWorker::TextWorker(size_t queue_limit)
    : jobs_(queue_limit), thread_([this] {
        while (!is_stopping_) {
          for (auto& job : jobs_.wait_drain(60)) {
            if (!is_stopping_) job();
          }
        }
      }) {}

TextWorker::~TextWorker() {
  is_stopping_ = true;
  jobs_.close();
  thread_.join();
}

}  // namespace tandem::openai
