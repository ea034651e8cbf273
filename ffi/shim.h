// What the Rust side needs of the shim: the address of each handler. See shim.cc.
#pragma once

#include <cstdint>

namespace smalt::ffi {

enum class Handler : std::uint8_t;

// The address of an XLA_FFI_Handler, for a PyCapsule; 0 if there is none.
std::uintptr_t handler_address(Handler handler) noexcept;

}  // namespace smalt::ffi
