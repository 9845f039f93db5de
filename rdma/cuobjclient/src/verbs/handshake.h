// What the two ends of a reliable connection say to each other in rdma_cm's private data. Pure.
//
// Source: docs/wire-format.md, "RC". The server connects and shows the nonce that it got in a token; the client answers
// with a proof that it knows it too. So a stolen rkey is of no use, and no stranger's service is spoken to.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "token.h"

namespace s3verbs {

// Protocol and version, then 16 bytes of nonce or proof.
using Greeting = std::array<std::uint8_t, 21>;

// The private data of a connect request.
Greeting connect_request(const Secret& nonce);

// The private data of an accept.
Greeting accept_reply(const Secret& nonce);

// Whether a connect request shows the nonce; takes as long whatever the bytes are. What follows it is padding of
// rdma_cm.
bool is_connect_request(const std::uint8_t* data, std::size_t size, const Secret& nonce);

// From the kernel's generator. Throws TransportError.
Secret random_nonce();

}  // namespace s3verbs
