// The XLA FFI handlers: decoding only. Everything that decides anything is Rust, behind src/ffi/bridge.rs.
//
// One target carries a handler for each platform. Instantiate builds the kernel from the attributes alone and hands
// it to XLA as the call site's state; Initialize (CUDA only: XLA:CPU never calls it) loads it on the device; Execute
// launches it. XLA destroys the state with its executable.
#include "smalt/ffi/shim.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "smalt/src/ffi/bridge.rs.h"
#include "xla/ffi/api/ffi.h"

namespace smalt::ffi {

namespace xf = ::xla::ffi;

// The state of one call site on one platform. Each platform's plugin has its own registry of types, hence its own id.
template <Platform platform>
struct CallSite {
  static inline xf::TypeId id = XLA_FFI_UNKNOWN_TYPE_ID;
  static constexpr const char* kName = platform == Platform::Cpu ? "smalt.call_site.cpu" : "smalt.call_site.cuda";
  rust::Box<Kernel> kernel;
  // A launch has passed all checks. A call site's shapes never change: from then on, only addresses are read, and a
  // call costs a cache line per buffer less.
  std::atomic<bool> checked{false};

  explicit CallSite(rust::Box<Kernel> kernel) : kernel(std::move(kernel)) {}
};

// What Instantiate returns. Not xf::ErrorOr, whose encoding wants the type registered earlier.
template <Platform platform>
struct Instantiated {
  std::unique_ptr<CallSite<platform>> state;
  Status status;
};

xf::Error to_error(const Status& status) {
  if (status.code == 0) return xf::Error::Success();
  return xf::Error(static_cast<xf::ErrorCode>(status.code), std::string(status.message));
}

}  // namespace smalt::ffi

namespace xla::ffi {

// Registers the state's type when XLA first asks for the handler's metadata: the order of registrations never matters.
template <smalt::ffi::Platform platform>
struct ResultEncoding<ExecutionStage::kInstantiate, smalt::ffi::Instantiated<platform>> {
  using State = smalt::ffi::CallSite<platform>;

  static XLA_FFI_TypeId state_type_id(const XLA_FFI_Api* api) {
    static const bool registered = [api] {
      static constexpr XLA_FFI_TypeInfo info = MakeTypeInfo<State>();
      XLA_FFI_Error* error = Ffi::RegisterTypeId(api, State::kName, &State::id, &info);
      if (error != nullptr) internal::DestroyError(api, error);
      return error == nullptr;
    }();
    return registered ? State::id : XLA_FFI_UNKNOWN_TYPE_ID;
  }

  static XLA_FFI_Error* Encode(const XLA_FFI_Api* api, XLA_FFI_ExecutionContext* ctx,
                               smalt::ffi::Instantiated<platform> result) {
    if (result.state == nullptr) return internal::CreateError(api, smalt::ffi::to_error(result.status));
    XLA_FFI_State_Set_Args args{};
    args.struct_size = XLA_FFI_State_Set_Args_STRUCT_SIZE;
    args.stage = XLA_FFI_ExecutionStage_INSTANTIATE;
    args.ctx = ctx;
    args.type_id = &State::id;
    args.state = result.state.get();
    XLA_FFI_Error* error = api->XLA_FFI_State_Set(&args);
    if (error == nullptr) result.state.release();
    return error;
  }
};

}  // namespace xla::ffi

namespace smalt::ffi {
namespace {

rust::Slice<const std::uint8_t> to_slice(std::string_view bytes) {
  return {reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()};
}

template <Platform platform>
Instantiated<platform> instantiate_call(std::string_view debug, std::string_view descriptor, std::int64_t flags,
                                        std::string_view hash, std::string_view target) {
  Attributes attributes{to_slice(descriptor), to_slice(debug), to_slice(hash), to_slice(target), flags};
  rust::Box<Kernel> kernel = instantiate(platform, attributes);
  Status status = kernel->status();
  if (status.code != 0) return {nullptr, std::move(status)};
  return {std::make_unique<CallSite<platform>>(std::move(kernel)), std::move(status)};
}

Buffer describe(const xf::AnyBuffer& buffer) {
  return {reinterpret_cast<std::uintptr_t>(buffer.untyped_data()), buffer.element_count(),
          static_cast<std::uint32_t>(buffer.element_type())};
}

std::uintptr_t address(const xf::AnyBuffer& buffer) { return reinterpret_cast<std::uintptr_t>(buffer.untyped_data()); }

// What `view` says of the operands, then of the results. Most kernels have few: no allocation for them.
template <typename View, View (*view)(const xf::AnyBuffer&)>
class Views {
 public:
  Views(const xf::RemainingArgs& args, const xf::RemainingRets& rets) {
    size_ = args.size() + rets.size();
    if (size_ > kInline) heap_.resize(size_);
    View* out = data();
    for (std::size_t i = 0; i < args.size(); ++i) *out++ = view(*args.get<xf::AnyBuffer>(i));
    for (std::size_t i = 0; i < rets.size(); ++i) *out++ = view(**rets.get<xf::AnyBuffer>(i));
  }
  rust::Slice<const View> slice() { return {data(), size_}; }

 private:
  static constexpr std::size_t kInline = 48;

  View* data() { return size_ > kInline ? heap_.data() : inline_; }

  std::size_t size_;
  View inline_[kInline];
  std::vector<View> heap_;
};

using Buffers = Views<Buffer, describe>;
using Addresses = Views<std::uintptr_t, address>;

xf::Error initialize_cuda_call(CallSite<Platform::Cuda>* site, std::int32_t device) {
  return to_error(initialize_cuda(*site->kernel, device));
}

xf::Error execute_cuda_call(CallSite<Platform::Cuda>* site, void* stream, std::int32_t device, xf::RunId run,
                            xf::RemainingArgs args, xf::RemainingRets rets) {
  const auto queue = reinterpret_cast<std::uintptr_t>(stream);
  if (site->checked.load(std::memory_order_acquire)) {
    Addresses addresses(args, rets);
    return to_error(execute_cuda_again(*site->kernel, device, run.run_id, queue, args.size(), addresses.slice()));
  }
  Buffers buffers(args, rets);
  Status status = execute_cuda(*site->kernel, device, run.run_id, queue, args.size(), buffers.slice());
  if (status.code == 0) site->checked.store(true, std::memory_order_release);
  return to_error(status);
}

xf::Error execute_cpu_call(CallSite<Platform::Cpu>* site, std::int32_t device, xf::RunId run, xf::RemainingArgs args,
                           xf::RemainingRets rets) {
  Buffers buffers(args, rets);
  return to_error(execute_cpu(*site->kernel, device, run.run_id, args.size(), buffers.slice()));
}

template <Platform platform>
XLA_FFI_Error* InstantiateHandler(XLA_FFI_CallFrame* frame) {
  static const auto* handler = xf::Ffi::BindInstantiate()
                                   .template Attr<std::string_view>("debug")
                                   .template Attr<std::string_view>("descriptor")
                                   .template Attr<std::int64_t>("flags")
                                   .template Attr<std::string_view>("hash")
                                   .template Attr<std::string_view>("target")
                                   .To(instantiate_call<platform>)
                                   .release();
  return handler->Call(frame);
}

XLA_FFI_Error* InitializeCudaHandler(XLA_FFI_CallFrame* frame) {
  static const auto* handler = xf::Ffi::BindInitialize()
                                   .Ctx<xf::State<CallSite<Platform::Cuda>>>()
                                   .Ctx<xf::DeviceOrdinal>()
                                   .To(initialize_cuda_call)
                                   .release();
  return handler->Call(frame);
}

template <bool captured>
XLA_FFI_Error* ExecuteCudaHandler(XLA_FFI_CallFrame* frame) {
  static const auto* handler = [] {
    auto binding = xf::Ffi::BindExecute()
                       .Ctx<xf::State<CallSite<Platform::Cuda>>>()
                       .Ctx<xf::PlatformStream<void*>>()
                       .Ctx<xf::DeviceOrdinal>()
                       .Ctx<xf::RunId>()
                       .RemainingArgs()
                       .RemainingRets();
    if constexpr (captured) return std::move(binding).To(execute_cuda_call, {xf::Traits::kCmdBufferCompatible}).release();
    else return std::move(binding).To(execute_cuda_call).release();
  }();
  const auto start = std::chrono::steady_clock::now();
  XLA_FFI_Error* error = handler->Call(frame);
  if (frame->extension_start == nullptr) {  // Else XLA asks for metadata.
    const auto spent = std::chrono::steady_clock::now() - start;
    count_call(std::chrono::duration_cast<std::chrono::nanoseconds>(spent).count());
  }
  return error;
}

XLA_FFI_Error* ExecuteCpuHandler(XLA_FFI_CallFrame* frame) {
  static const auto* handler = xf::Ffi::BindExecute()
                                   .Ctx<xf::State<CallSite<Platform::Cpu>>>()
                                   .Ctx<xf::DeviceOrdinal>()
                                   .Ctx<xf::RunId>()
                                   .RemainingArgs()
                                   .RemainingRets()
                                   .To(execute_cpu_call)
                                   .release();
  return handler->Call(frame);
}

}  // namespace

std::uintptr_t handler_address(Handler handler) noexcept {
  XLA_FFI_Handler* address = nullptr;
  switch (handler) {
    case Handler::InstantiateCpu: address = InstantiateHandler<Platform::Cpu>; break;
    case Handler::ExecuteCpu: address = ExecuteCpuHandler; break;
    case Handler::InstantiateCuda: address = InstantiateHandler<Platform::Cuda>; break;
    case Handler::InitializeCuda: address = InitializeCudaHandler; break;
    case Handler::ExecuteCuda: address = ExecuteCudaHandler<true>; break;
    case Handler::ExecuteCudaUncaptured: address = ExecuteCudaHandler<false>; break;
  }
  return reinterpret_cast<std::uintptr_t>(address);
}

}  // namespace smalt::ffi
