#pragma once
// RawClient: a TCP socket for tests of servers: sends exact bytes, reads with a deadline, can half-close and reset.

#include <cstdint>
#include <string>
#include <string_view>

namespace tandem::testing {

class RawClient {
 public:
  explicit RawClient(uint16_t port);  // 127.0.0.1
  ~RawClient();
  RawClient(RawClient&& other) noexcept;
  RawClient(const RawClient&) = delete;

  void send(std::string_view bytes);
  // What has come when `text` is in it, after what earlier calls returned; all that came if the peer closes or
  // nothing comes for ten seconds.
  std::string read_until(std::string_view text);
  std::string read_bytes(size_t count);
  std::string read_once();  // what one read of the socket brings; empty at the end
  std::string read_all() { return read_until({}); }  // until the peer closes
  bool is_closed_by_peer();                          // waits for the end of the stream; true also after a reset

  void set_receive_buffer(int size_bytes);
  void finish_sending();  // FIN
  void close();           // FIN both ways, unread bytes are dropped
  void reset();           // RST

 private:
  bool read_some();
  int socket_ = -1;
  std::string unread_;
  bool is_at_end_ = false;
};

// One whole answer.
struct RawAnswer {
  int status = 0;
  std::string head;                                 // status line and headers
  std::string body;                                 // chunks joined
  std::string header(std::string_view name) const;  // any case; empty when absent
};

// Reads one answer (Content-Length, chunked, or to the end of the stream).
RawAnswer read_answer(RawClient& client, bool is_head = false);

// One request on a connection of its own.
RawAnswer fetch(uint16_t port, std::string_view method, std::string_view target, std::string_view body = {},
                std::string_view more_headers = {});

}  // namespace tandem::testing
