//! Running a kernel on host data, with no JAX around: replay of dumped kernels, file tests.
use super::driver::{Driver, driver};
use super::{Image, JitLog, Loaded, Plan, Resources, retire};
use crate::error::Error;
use cudarc::driver::sys;
use std::ptr;

/// What a run showed.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Outcome {
    pub resources: Resources,
    pub log: JitLog,
    /// Device time of the launch, in microseconds.
    pub device_us: f32,
}

/// Times of many launches in a row, on one stream.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Measured {
    pub resources: Resources,
    /// Host time of one launch, in microseconds: the least of ten batches.
    pub host_us: f64,
    /// Device time per launch, in microseconds, over all batches.
    pub device_us: f64,
}

/// Launches `10 * batch` times on copies of `buffers`, which stay as they are.
pub fn measure(device: i32, plan: Plan, image: Image<'_>, buffers: &[&[u8]], batch: u32) -> Result<Measured, Error> {
    let driver = driver()?;
    let _context = Context::enter(driver, device)?;
    retire::clear();
    let loaded = Loaded::load(plan, image)?;
    let memory = buffers
        .iter()
        .map(|buffer| Memory::new(driver, buffer))
        .collect::<Result<Vec<_>, _>>()?;
    let addresses = memory.iter().map(|memory| memory.address).collect::<Vec<_>>();
    let (start, end) = (Event::new(driver)?, Event::new(driver)?);
    loaded.launch(0, &addresses)?;
    start.record()?;
    let mut host_us = f64::INFINITY;
    for _ in 0..10 {
        let clock = std::time::Instant::now();
        for _ in 0..batch {
            loaded.launch(0, &addresses)?;
        }
        host_us = host_us.min(clock.elapsed().as_secs_f64() * 1e6 / f64::from(batch.max(1)));
        // A full queue would make the host wait for the device.
        // SAFETY: waits for the device.
        driver.check("cuCtxSynchronize", unsafe { (driver.ctx_synchronize)() })?;
    }
    end.record()?;
    let millis = end.since(&start)?;
    Ok(Measured {
        resources: loaded.resources().clone(),
        host_us,
        device_us: f64::from(millis) * 1e3 / f64::from(10 * batch.max(1)),
    })
}

/// Copies `buffers` to GPU `device`, launches, waits, and copies them back.
pub fn run(device: i32, plan: Plan, image: Image<'_>, buffers: &mut [&mut [u8]]) -> Result<Outcome, Error> {
    let driver = driver()?;
    if plan.buffers() > buffers.len() {
        return Err(Error::internal("a run with fewer buffers than the kernel names")
            .expected(plan.buffers().to_string())
            .got(buffers.len().to_string()));
    }
    let _context = Context::enter(driver, device)?;
    retire::clear();
    let loaded = Loaded::load(plan, image)?;
    let memory = buffers
        .iter()
        .map(|buffer| Memory::new(driver, buffer))
        .collect::<Result<Vec<_>, _>>()?;
    let addresses = memory.iter().map(|memory| memory.address).collect::<Vec<_>>();
    let (start, end) = (Event::new(driver)?, Event::new(driver)?);
    start.record()?;
    loaded.launch(0, &addresses)?;
    end.record()?;
    let millis = end.since(&start)?;
    for (memory, buffer) in memory.iter().zip(buffers) {
        memory.read(buffer)?;
    }
    Ok(Outcome {
        resources: loaded.resources().clone(),
        log: loaded.log().clone(),
        device_us: millis * 1e3,
    })
}

/// The device's primary context, current on this thread while this lives.
struct Context {
    driver: &'static Driver,
}

impl Context {
    fn enter(driver: &'static Driver, ordinal: i32) -> Result<Context, Error> {
        let (mut device, mut context) = (0, ptr::null_mut());
        // SAFETY: stores the device, or fails.
        driver.check("cuDeviceGet", unsafe { (driver.device_get)(&mut device, ordinal) })?;
        // SAFETY: the primary context is made if there is none and kept for the life of the process: modules that
        // wait to be unloaded refer to it.
        driver.check("cuDevicePrimaryCtxRetain", unsafe {
            (driver.primary_ctx_retain)(&mut context, device)
        })?;
        // SAFETY: the context is alive.
        driver.check("cuCtxPushCurrent", unsafe { (driver.ctx_push_current)(context) })?;
        Ok(Context { driver })
    }
}

/// Makes the device's primary context current on this thread, if none is: threads that PyTorch computes gradients in may have none yet.
pub fn make_current(ordinal: i32) -> Result<(), Error> {
    let driver = driver()?;
    let mut context = ptr::null_mut();
    // SAFETY: stores the current context, null if there is none.
    driver.check("cuCtxGetCurrent", unsafe { (driver.ctx_get_current)(&mut context) })?;
    if context.is_null() {
        std::mem::forget(Context::enter(driver, ordinal)?);
    }
    Ok(())
}

impl Drop for Context {
    fn drop(&mut self) {
        let mut context: sys::CUcontext = ptr::null_mut();
        // SAFETY: pops what `enter` pushed.
        unsafe { (self.driver.ctx_pop_current)(&mut context) };
    }
}

struct Memory {
    driver: &'static Driver,
    address: u64,
}

impl Memory {
    fn new(driver: &'static Driver, contents: &[u8]) -> Result<Memory, Error> {
        let mut address = 0;
        // SAFETY: stores the address; sizes of zero are refused by the driver, hence at least one byte.
        driver.check("cuMemAlloc", unsafe {
            (driver.mem_alloc)(&mut address, contents.len().max(1))
        })?;
        let memory = Memory { driver, address };
        // SAFETY: both sides hold `contents.len()` bytes.
        let code = unsafe { (driver.memcpy_htod)(address, contents.as_ptr().cast(), contents.len()) };
        driver.check("cuMemcpyHtoD", code)?;
        Ok(memory)
    }

    fn read(&self, contents: &mut [u8]) -> Result<(), Error> {
        // SAFETY: both sides hold `contents.len()` bytes.
        let code = unsafe { (self.driver.memcpy_dtoh)(contents.as_mut_ptr().cast(), self.address, contents.len()) };
        self.driver.check("cuMemcpyDtoH", code)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated by `new`, freed once; the driver waits for work that uses it.
        unsafe { (self.driver.mem_free)(self.address) };
    }
}

struct Event {
    driver: &'static Driver,
    event: sys::CUevent,
}

impl Event {
    fn new(driver: &'static Driver) -> Result<Event, Error> {
        let mut event = ptr::null_mut();
        // SAFETY: stores a new event of the current context.
        driver.check("cuEventCreate", unsafe { (driver.event_create)(&mut event, 0) })?;
        Ok(Event { driver, event })
    }

    fn record(&self) -> Result<(), Error> {
        // SAFETY: the event is alive; the null stream is the legacy default stream.
        self.driver.check("cuEventRecord", unsafe {
            (self.driver.event_record)(self.event, ptr::null_mut())
        })
    }
}

impl Event {
    /// Milliseconds between two recorded events, after waiting for this one. What a kernel did wrong shows here.
    fn since(&self, start: &Event) -> Result<f32, Error> {
        // SAFETY: waits for the event, which is recorded.
        let code = unsafe { (self.driver.event_synchronize)(self.event) };
        self.driver.check("the kernel", code)?;
        let mut millis = 0.0;
        // SAFETY: both events are recorded and complete.
        let code = unsafe { (self.driver.event_elapsed_time)(&mut millis, start.event, self.event) };
        self.driver.check("cuEventElapsedTime", code)?;
        Ok(millis)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created by `new`, destroyed once.
        unsafe { (self.driver.event_destroy)(self.event) };
    }
}
