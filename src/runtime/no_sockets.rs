//! Where there are no CUDA devices to share: sockets that do not work.
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

fn none<T>() -> io::Result<T> {
    Err(io::Error::new(ErrorKind::Unsupported, "only Linux has them"))
}

pub fn listen(_: &str) -> io::Result<UnixListener> {
    none()
}

pub fn is_of_our_user(_: &UnixStream) -> io::Result<bool> {
    none()
}

pub fn ask(_: &str, _: &str, _: &OwnedFd, _: Duration) -> io::Result<Vec<u8>> {
    none()
}

pub fn receive(_: &mut UnixStream) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
    none()
}
