// One list of cases that every transport passes.

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "net/transport/transport_for_test.h"

using namespace tandem;
using namespace tandem::transport;

namespace {

MutableBytes writable(std::string& text) { return std::as_writable_bytes(std::span(text)); }

// `bytes` cut into pieces of growing odd sizes.
std::vector<Bytes> pieces_of(std::string_view bytes) {
  std::vector<Bytes> pieces;
  for (size_t size = 1; !bytes.empty(); size = size * 3 + 1) {
    pieces.push_back(bytes_of(bytes.substr(0, size)));
    bytes.remove_prefix(std::min(size, bytes.size()));
  }
  return pieces;
}

// How often the loop wakes in 200 ms; the alarm that ends them is one of the times.
uint64_t wakeups_until_alarm(EventLoop& loop) {
  const uint64_t before = loop.num_wakeups();
  std::thread alarm([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    loop.stop();
  });
  loop.run();
  alarm.join();
  return loop.num_wakeups() - before;
}

}  // namespace

TEST_CASE("frames of all sizes arrive whole and in order, wherever they land") {
  for (const std::string& scheme : kSchemes) {
    CAPTURE(scheme);
    Rig rig(scheme);
    RecordingEnd client;
    auto connection = rig.open(client);
    RecordingEnd& server = *rig.acceptor.ends[0];
    std::string landed;
    server.choose_placement = [&](Connection&, std::string_view header, uint64_t size) {
      if (header.ends_with("skip")) return Placement::skip();
      if (!header.ends_with("into")) return Placement::hold();
      landed.assign(size, '\0');
      std::vector<MutableBytes> ranges;
      const std::string_view all = landed;
      for (const Bytes& piece : pieces_of(all)) {
        const auto at = static_cast<size_t>(text_of(piece).data() - all.data());
        ranges.push_back(writable(landed).subspan(at, piece.size()));
      }
      ranges.emplace_back();  // an empty range is one too
      return Placement::into(std::move(ranges));
    };
    std::vector<std::string> placements;
    server.frame_hook = [&](Connection&, std::string_view header) {
      placements.push_back(header.ends_with("into") ? landed : server.frames.back().payload);
    };
    const uint64_t ring = rig.limits.ring_bytes;
    const std::vector<uint64_t> sizes = {0,         1,     23,       24,        4095,     4096,
                                         4097,      65536, 368'640,  1 << 20,   ring / 2, ring / 2 + 1,
                                         ring - 24, ring,  ring + 1, 9'999'999, 64 << 20};
    std::vector<std::string> payloads;
    for (const uint64_t size : sizes) payloads.push_back(pattern(size, size));
    for (const char* kind : {"hold", "into", "skip"}) {
      for (size_t i = 0; i < sizes.size(); ++i) {
        const std::string header = std::string(i * 37, 'h') + kind;
        const Frame frame = {bytes_of(header), pieces_of(payloads[i]), i, 0};
        for (Status status = connection->send(frame); !status; status = connection->send(frame)) {
          REQUIRE(status.error().code == ErrorCode::kExhausted);
          client.num_writable = 0;
          REQUIRE(rig.run([&] { return client.num_writable > 0; }));
        }
      }
    }
    const size_t expected = 2 * sizes.size();
    REQUIRE(rig.run([&] { return client.sent.size() == 3 * sizes.size() && server.frames.size() == expected; }));
    for (size_t i = 0; i < expected; ++i) {
      const size_t size_index = i % sizes.size();
      CAPTURE(sizes[size_index]);
      CHECK(server.frames[i].header == std::string(size_index * 37, 'h') + (i < sizes.size() ? "hold" : "into"));
      CHECK((placements[i] == payloads[size_index]));
      if (i >= sizes.size()) CHECK(server.frames[i].payload.empty());
    }
    for (size_t i = 0; i < client.sent.size(); ++i) CHECK(client.sent[i] == i % sizes.size());
  }
}

TEST_CASE("both directions at once, a frame in answer to each") {
  for (const std::string& scheme : kSchemes) {
    CAPTURE(scheme);
    Rig rig(scheme);
    RecordingEnd client;
    auto connection = rig.open(client);
    RecordingEnd& server = *rig.acceptor.ends[0];
    const std::string payload = pattern(700'001, 1);
    server.frame_hook = [&](Connection& back, std::string_view header) {
      REQUIRE(back.send(frame_of(header, payload)));
    };
    for (int i = 0; i < 40; ++i) REQUIRE(connection->send(frame_of(std::to_string(i), payload)));
    REQUIRE(rig.run([&] { return client.frames.size() == 40; }));
    for (int i = 0; i < 40; ++i) {
      CHECK(client.frames[static_cast<size_t>(i)].header == std::to_string(i));
      CHECK((client.frames[static_cast<size_t>(i)].payload == payload));
    }
  }
}

TEST_CASE("many connections on one loop keep their frames apart") {
  for (const std::string& scheme : kSchemes) {
    CAPTURE(scheme);
    TransportLimits limits;
    limits.ring_bytes = 64 << 10;
    limits.max_greetings = 200;
    Rig rig(scheme, limits);
    std::vector<std::unique_ptr<RecordingEnd>> clients;
    std::vector<std::unique_ptr<Connection>> connections;
    for (int i = 0; i < 100; ++i) {
      clients.push_back(std::make_unique<RecordingEnd>());
      connections.push_back(rig.connect(*clients.back(), std::to_string(i)));
      const std::string payload = pattern(20'000, static_cast<uint64_t>(i));
      // Sent before the greeting is answered; the payload is held by the test until all is over.
      for (int k = 0; k < 10; ++k) REQUIRE(connections.back()->send(frame_of(std::to_string(i), "")));
    }
    REQUIRE(rig.run([&] {
      return rig.acceptor.ends.size() == 100 && std::all_of(rig.acceptor.ends.begin(), rig.acceptor.ends.end(),
                                                            [](const auto& end) { return end->frames.size() == 10; });
    }));
    for (size_t i = 0; i < 100; ++i) {
      for (const RecordedFrame& frame : rig.acceptor.ends[i]->frames) CHECK(frame.header == rig.acceptor.greetings[i]);
    }
  }
}

TEST_CASE("a greeting is shown to the acceptor, which may refuse it") {
  for (const std::string& scheme : kSchemes) {
    CAPTURE(scheme);
    Rig rig(scheme);
    rig.acceptor.is_welcome = [](std::string_view greeting) { return greeting == "token"; };
    RecordingEnd good, bad;
    auto refused = rig.connect(bad, "no token");
    REQUIRE(rig.run([&] { return !bad.closed.empty(); }));
    CHECK(bad.closed[0].code == ErrorCode::kUnavailable);
    CHECK(bad.closed[0].message.find("refused") != std::string::npos);
    CHECK(bad.num_opened == 0);
    auto taken = rig.connect(good, "token");
    REQUIRE(rig.run([&] { return taken->is_open() && rig.acceptor.connections.size() == 1; }));
    CHECK(rig.acceptor.greetings == std::vector<std::string>{"no token", "token"});
    CHECK(taken->peer_id() == static_cast<uint64_t>(rig.acceptor.connections[0]->id()));
    CHECK(rig.acceptor.connections[0]->peer_id() == static_cast<uint64_t>(taken->id()));
    auto too_long = rig.network.connect(rig.listener->address(), bytes_of(std::string(1025, 'x')), bad);
    REQUIRE(!too_long);
    CHECK(too_long.error().code == ErrorCode::kInvalidArgument);
  }
}

TEST_CASE("back-pressure: a paused receiver fills the queue, send refuses, nothing is lost") {
  for (const std::string& scheme : kSchemes) {
    CAPTURE(scheme);
    TransportLimits limits;
    limits.max_queued_frames = 16;
    limits.ring_bytes = 1 << 20;
    Rig rig(scheme, limits);
    RecordingEnd client;
    auto connection = rig.open(client);
    RecordingEnd& server = *rig.acceptor.ends[0];
    rig.acceptor.connections[0]->pause();
    const std::string payload = pattern(1 << 20, 5);
    // Sockets hold some megabytes of their own, so this goes on until a full queue does not drain any more.
    uint64_t num_taken = 0;
    for (int num_refused = 0; num_refused < 3;) {
      REQUIRE(num_taken < 500);
      const std::string header = std::to_string(num_taken);
      const Status status = connection->send(frame_of(header, payload, num_taken));
      num_refused = status ? 0 : num_refused + 1;
      if (status)
        ++num_taken;
      else
        CHECK(status.error().code == ErrorCode::kExhausted);
      rig.settle();
    }
    CHECK(server.frames.empty());
    // The queue holds what its limit says; over ucx a window of chunks counts as unsent, too.
    const uint64_t num_unsent = num_taken - client.sent.size();
    CHECK(num_unsent >= 16);
    CHECK(num_unsent <= (scheme == "ucx" ? 16u + 9 : 16u));
    client.num_writable = 0;
    rig.acceptor.connections[0]->resume();
    REQUIRE(rig.run([&] { return server.frames.size() == num_taken && client.sent.size() == num_taken; }));
    CHECK(client.num_writable == 1);
    for (size_t i = 0; i < num_taken; ++i) {
      CHECK(server.frames[i].header == std::to_string(i));
      CHECK((server.frames[i].payload == payload));
      CHECK(client.sent[i] == i);
    }
  }
}

TEST_CASE("limits of one frame") {
  for (const std::string& scheme : kSchemes) {
    CAPTURE(scheme);
    TransportLimits limits;
    limits.max_header_bytes = 100;
    limits.max_payload_bytes = 1000;
    limits.max_queued_bytes = 500;
    Rig rig(scheme, limits);
    RecordingEnd client;
    auto connection = rig.open(client);
    const std::string big(1001, 'x');
    for (const Frame& frame : {frame_of(big.substr(0, 101), ""), frame_of("", big)}) {
      const Status status = connection->send(frame);
      REQUIRE(!status);
      CHECK(status.error().code == ErrorCode::kInvalidArgument);
    }
    // Alone a frame may be larger than the queue, but nothing goes beside it.
    REQUIRE(connection->send(frame_of("", std::string_view(big).substr(1))));
    const Status status = connection->send(frame_of("", ""));
    REQUIRE(!status);
    CHECK(status.error().code == ErrorCode::kExhausted);
    REQUIRE(rig.run([&] { return client.num_writable == 1 && rig.acceptor.ends[0]->frames.size() == 1; }));
  }
}

TEST_CASE("deadlines: of a frame, and without a byte moving") {
  for (const std::string& scheme : kSchemes) {
    for (const bool has_deadline : {true, false}) {
      CAPTURE(scheme);
      CAPTURE(has_deadline);
      ManualClock clock;
      Rig rig(scheme, {}, &clock);
      RecordingEnd client;
      auto connection = rig.open(client);
      rig.acceptor.connections[0]->pause();
      const std::string payload = pattern(64 << 20, 5);
      Frame frame = frame_of("never", payload);
      frame.deadline_ms = has_deadline ? 70 : 0;
      REQUIRE(connection->send(frame));
      const auto move_all = [&] {  // as much as ring and sockets hold
        for (int i = 0; i < 200; ++i) rig.loop->run_once(0);
      };
      move_all();
      clock.advance_ms(has_deadline ? 69 : 4999);
      move_all();
      CHECK(client.closed.empty());
      clock.advance_ms(2);
      REQUIRE(rig.run([&] { return !client.closed.empty(); }));
      CHECK(client.closed[0].code == ErrorCode::kDeadline);
      CHECK(!connection->is_open());
      // The other side hears of it, and sees no frame.
      rig.acceptor.connections[0]->resume();
      REQUIRE(rig.run([&] { return !rig.acceptor.ends[0]->closed.empty(); }));
      CHECK(rig.acceptor.ends[0]->frames.empty());
      CHECK(rig.acceptor.ends[0]->closed[0].code == ErrorCode::kUnavailable);
    }
  }
}

TEST_CASE("a peer that does not greet is given up") {
  SocketFolder folder;
  ManualClock clock;
  auto loop = std::move(EventLoop::create(clock)).value();
  Network network(*loop, {}, nullptr);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const std::string path = folder.path + "/silent";
  strcpy(address.sun_path, path.c_str());
  const OwnedFd silent(socket(AF_UNIX, SOCK_SEQPACKET, 0));
  REQUIRE(bind(silent.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  REQUIRE(listen(silent.get(), 8) == 0);
  RecordingEnd end;
  auto connection = std::move(network.connect("shm:" + path, {}, end)).value();
  loop->run_once(0);
  clock.advance_ms(1999);
  loop->run_once(0);
  CHECK(end.closed.empty());
  clock.advance_ms(2);
  loop->run_once(0);
  REQUIRE(end.closed.size() == 1);
  CHECK(end.closed[0].code == ErrorCode::kDeadline);
  // And one that connects and says nothing costs the listener a place for that long only.
  RecordingAcceptor acceptor;
  auto listener = std::move(network.listen("shm:" + folder.path + "/node", acceptor)).value();
  strcpy(address.sun_path, (folder.path + "/node").c_str());
  const OwnedFd mute(socket(AF_UNIX, SOCK_SEQPACKET, 0));
  REQUIRE(connect(mute.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  for (int i = 0; i < 3; ++i) loop->run_once(0);
  clock.advance_ms(2001);
  for (int i = 0; i < 3; ++i) loop->run_once(0);
  char byte;
  CHECK(recv(mute.get(), &byte, 1, 0) == 0);  // closed
  unlink(path.c_str());
}

TEST_CASE("nobody listens") {
  SocketFolder folder;
  SystemClock clock;
  auto loop = std::move(EventLoop::create(clock)).value();
  LoopbackHub hub;
  Network network(*loop, {}, &hub);
  RecordingEnd end;
  for (const std::string& address : {std::string("loop:nobody"), "shm:" + folder.path + "/nobody"}) {
    const auto made = network.connect(address, {}, end);
    REQUIRE(!made);
    CHECK(made.error().code == ErrorCode::kUnavailable);
  }
  for (const char* address : {"", "tcp", "tcp:", "tcp:1", "tcp:localhost:80", "tcp:127.0.0.1:", "pigeon:1", "shm:"}) {
    CAPTURE(address);
    const auto made = network.connect(address, {}, end);
    REQUIRE(!made);
    CHECK(made.error().code == ErrorCode::kInvalidArgument);
  }
  // A port that was free a moment ago.
  RecordingAcceptor acceptor;
  auto listener = std::move(network.listen("tcp:127.0.0.1:0", acceptor)).value();
  const std::string address = listener->address();
  listener = nullptr;
  auto connection = network.connect(address, {}, end);
  if (connection) {
    REQUIRE(run_until(*loop, [&] { return !end.closed.empty(); }));
    CHECK(end.closed[0].code == ErrorCode::kUnavailable);
  } else {
    CHECK(connection.error().code == ErrorCode::kUnavailable);
  }
}

TEST_CASE("two listeners at one place: the second is refused, a dead one's place is taken") {
  for (const std::string& scheme : kSchemes) {
    CAPTURE(scheme);
    Rig rig(scheme);
    RecordingAcceptor other;
    const std::string address = rig.listener->address();
    const auto second = rig.network.listen(address, other);
    REQUIRE(!second);
    CHECK(second.error().code == ErrorCode::kUnavailable);
    rig.listener = nullptr;
    auto third = rig.network.listen(address, other);
    REQUIRE(third);
    rig.listener = std::move(third).value();
    RecordingEnd end;
    auto connection = rig.connect(end);
    REQUIRE(rig.run([&] { return other.connections.size() == 1; }));
  }
}

TEST_CASE("a connection built anew has another id, and nothing of the old one comes through it") {
  for (const std::string& scheme : kSchemes) {
    CAPTURE(scheme);
    Rig rig(scheme);
    RecordingEnd first, second;
    auto old_connection = rig.open(first);
    const auto old_id = old_connection->id();
    const std::string payload = pattern(64 << 20, 1);
    REQUIRE(old_connection->send(frame_of("old", payload)));
    REQUIRE(rig.run([&] { return rig.acceptor.ends[0]->num_headers == 1; }));  // in mid-frame
    old_connection->close();
    const Status status = old_connection->send(frame_of("late", ""));
    REQUIRE(!status);
    CHECK(status.error().code == ErrorCode::kUnavailable);
    auto new_connection = rig.open(second);
    CHECK(new_connection->id() != old_id);
    CHECK(rig.acceptor.connections[1]->id() != rig.acceptor.connections[0]->id());
    REQUIRE(new_connection->send(frame_of("new", "payload")));
    REQUIRE(rig.run([&] { return rig.acceptor.ends[1]->frames.size() == 1 && !rig.acceptor.ends[0]->closed.empty(); }));
    CHECK(rig.acceptor.ends[0]->frames.empty());
    CHECK(rig.acceptor.ends[0]->closed[0].code == ErrorCode::kUnavailable);
    CHECK(rig.acceptor.ends[0]->closed[0].message.find("mid-frame") != std::string::npos);
    CHECK(rig.acceptor.ends[1]->frames[0].header == "new");
    CHECK(first.closed.empty());  // it closed itself
    CHECK(first.sent.empty());
  }
}

TEST_CASE("what left before the end is delivered before the end") {
  for (const std::string& scheme : kSchemes) {
    CAPTURE(scheme);
    Rig rig(scheme);
    RecordingEnd client;
    auto connection = rig.open(client);
    const std::string payload = pattern(100'000, 1);
    for (uint64_t i = 0; i < 10; ++i) REQUIRE(connection->send(frame_of("x", payload, i)));
    client.sent_hook = [&](Connection& self, uint64_t tag) {
      if (tag == 9) self.close();
    };
    REQUIRE(rig.run([&] { return !rig.acceptor.ends[0]->closed.empty(); }));
    CHECK(rig.acceptor.ends[0]->frames.size() == 10);
    CHECK(rig.acceptor.ends[0]->closed[0].message.find("mid-frame") == std::string::npos);
  }
}

TEST_CASE("closing inside any callback ends them all") {
  for (const std::string& scheme : kSchemes) {
    for (const char* where : {"header", "frame"}) {
      CAPTURE(scheme);
      CAPTURE(where);
      Rig rig(scheme);
      RecordingEnd client;
      auto connection = rig.open(client);
      RecordingEnd& server = *rig.acceptor.ends[0];
      std::string landed(1000, 'B');
      server.choose_placement = [&](Connection& self, std::string_view, uint64_t) {
        if (where == std::string("header")) self.close();
        return Placement::into({writable(landed)});
      };
      server.frame_hook = [&](Connection& self, std::string_view header) {
        self.close();
        CHECK(header == "first");  // still there
      };
      const std::string payload = pattern(1000, 1);
      for (const char* header : {"first", "second", "third"}) REQUIRE(connection->send(frame_of(header, payload)));
      REQUIRE(rig.run([&] { return !client.closed.empty(); }));
      CHECK(server.frames.size() == (where == std::string("frame") ? 1 : 0));
      CHECK((landed == (where == std::string("frame") ? payload : std::string(1000, 'B'))));
      CHECK(server.closed.empty());
      // A connection may go inside a callback by way of the loop.
      rig.loop->retire(std::move(rig.acceptor.connections[0]));
      rig.settle();
    }
  }
}

TEST_CASE("an abandoned frame does not touch its placement again, and the connection goes on") {
  for (const std::string& scheme : kSchemes) {
    CAPTURE(scheme);
    Rig rig(scheme);
    RecordingEnd client;
    auto connection = rig.open(client);
    RecordingEnd& server = *rig.acceptor.ends[0];
    std::string landed(32 << 20, 'B');
    server.choose_placement = [&](Connection&, std::string_view header, uint64_t) {
      return header == "next" ? Placement::hold() : Placement::into({writable(landed)});
    };
    const std::string payload = pattern(32 << 20, 1);
    REQUIRE(connection->send(frame_of("abandoned", payload)));
    REQUIRE(connection->send(frame_of("next", "after")));
    REQUIRE(rig.run([&] { return server.num_headers == 1; }));
    rig.acceptor.connections[0]->abandon_frame();
    const std::string as_left = landed;
    REQUIRE(rig.run([&] { return server.frames.size() == 1; }));
    CHECK(server.frames[0].header == "next");
    CHECK(server.frames[0].payload == "after");
    CHECK((landed == as_left));
    CHECK((landed != payload));
  }
}

TEST_CASE("a refused frame closes the connection and reaches no placement") {
  for (const std::string& scheme : kSchemes) {
    CAPTURE(scheme);
    Rig rig(scheme);
    RecordingEnd client;
    auto connection = rig.open(client);
    RecordingEnd& server = *rig.acceptor.ends[0];
    server.choose_placement = [](Connection&, std::string_view, uint64_t) { return Placement::close(); };
    REQUIRE(connection->send(frame_of("bad", "payload")));
    REQUIRE(rig.run([&] { return !server.closed.empty() && !client.closed.empty(); }));
    CHECK(server.closed[0].code == ErrorCode::kCorrupt);
    CHECK(client.closed[0].code == ErrorCode::kUnavailable);
    CHECK(server.frames.empty());
  }
}

TEST_CASE("two threads, a loop each") {
  for (const std::string& scheme : kSchemes) {
    CAPTURE(scheme);
    Rig rig(scheme);
    const std::string payload = pattern(1'500'000, 7);
    int num_good = 0;
    rig.acceptor.prepare = [&](RecordingEnd& end) {
      end.frame_hook = [&](Connection& back, std::string_view) {
        num_good += end.frames.back().payload == payload;
        end.frames.clear();
        REQUIRE(back.send(frame_of("ack", "")));
      };
    };
    std::thread receiver([&] { rig.loop->run(); });
    SystemClock clock;
    auto loop = std::move(EventLoop::create(clock)).value();
    Network network(*loop, rig.limits, &rig.hub);
    RecordingEnd client;
    auto connection = std::move(network.connect(rig.listener->address(), bytes_of("hi"), client)).value();
    uint64_t num_sent = 0;
    const bool is_done = run_until(*loop, [&] {
      while (num_sent < 100 && connection->send(frame_of("push", payload))) ++num_sent;
      return client.frames.size() == 100;
    });
    rig.loop->stop();
    receiver.join();
    CHECK(is_done);
    CHECK(num_good == 100);
  }
}

TEST_CASE("an idle connection wakes nobody") {
  for (const std::string& scheme : kSchemes) {
    CAPTURE(scheme);
    Rig rig(scheme);
    std::vector<std::unique_ptr<RecordingEnd>> clients;
    std::vector<std::unique_ptr<Connection>> connections;
    for (int i = 0; i < 8; ++i) {
      clients.push_back(std::make_unique<RecordingEnd>());
      connections.push_back(rig.open(*clients.back()));
    }
    const std::string payload = pattern(6 << 20, 1);
    for (auto& connection : connections) REQUIRE(connection->send(frame_of("x", payload)));
    REQUIRE(rig.run([&] {
      return std::all_of(rig.acceptor.ends.begin(), rig.acceptor.ends.end(),
                         [](const auto& end) { return end->frames.size() == 1; });
    }));
    for (int k = 0; k < 10; ++k) rig.loop->run_once(20);
    CHECK(wakeups_until_alarm(*rig.loop) == 1);
    // Paused, with a peer that has gone: it stays readable, and still wakes nobody.
    for (auto& connection : rig.acceptor.connections) connection->pause();
    connections.clear();
    for (int k = 0; k < 10; ++k) rig.loop->run_once(20);
    CHECK(wakeups_until_alarm(*rig.loop) == 1);
    for (auto& connection : rig.acceptor.connections) connection->resume();
    REQUIRE(rig.run([&] {
      return std::all_of(rig.acceptor.ends.begin(), rig.acceptor.ends.end(),
                         [](const auto& end) { return end->closed.size() == 1; });
    }));
  }
}
