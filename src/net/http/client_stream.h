#pragma once
// ClientStream: a connection's bytes, plain or through TLS. A part of http_server.cc, as connection.h is. One I/O
// thread.

#include <boost/asio.hpp>
#include <boost/asio/ssl.hpp>
#include <memory>
#include <optional>
#include <utility>

#include "base/result.h"
#include "net/http/tls_files.h"

namespace tandem::http {

// TLS 1.2 and later with this certificate. kNotFound or kInvalidArgument names the file and what is wrong with it.
Result<std::shared_ptr<boost::asio::ssl::context>> open_tls(const TlsFiles& files);

class ClientStream {
 public:
  using Socket = boost::asio::ip::tcp::socket;

  // `context`: null for a plain one; else it outlives the stream.
  ClientStream(Socket socket, boost::asio::ssl::context* context) : socket_(std::move(socket)) {
    if (context != nullptr) tls_.emplace(socket_, *context);
  }

  Socket& socket() { return socket_; }
  bool is_tls() const { return tls_.has_value(); }

  boost::asio::ssl::stream<Socket&>& tls() { return *tls_; }

  // `done(error, size)`, on this thread.
  template <class Done>
  void async_write(boost::asio::const_buffer buffer, Done done) {
    if (tls_)
      boost::asio::async_write(*tls_, buffer, std::move(done));
    else
      boost::asio::async_write(socket_, buffer, std::move(done));
  }

  // No more bytes will be written: the client is told so. `keep` lives until that is done.
  template <class Keep>
  void finish_writing(Keep keep) {
    boost::system::error_code ignored;
    if (tls_)
      tls_->async_shutdown([keep](boost::system::error_code) {});
    else
      socket_.shutdown(Socket::shutdown_send, ignored);
  }

 private:
  Socket socket_;
  std::optional<boost::asio::ssl::stream<Socket&>> tls_;
};

}  // namespace tandem::http
