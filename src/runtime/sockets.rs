//! Sockets of names, by which processes of one user give each other file descriptors.
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg, sockopt,
};

/// Names are no files: they go with the process, and every user of the network namespace can connect.
pub fn listen(name: &str) -> io::Result<UnixListener> {
    UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)
}

pub fn connect(name: &str) -> io::Result<UnixStream> {
    UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)
}

pub fn is_of_our_user(stream: &UnixStream) -> io::Result<bool> {
    Ok(sockopt::socket_peercred(stream)?.uid == rustix::process::geteuid())
}

/// Sends a text with a descriptor to the process that listens at `peer`; its answer, which may take `patience`.
///
/// A name is free once its owner has ended, and any process may take it: another user's process gets nothing.
pub fn ask(peer: &str, text: &str, descriptor: &OwnedFd, patience: Duration) -> io::Result<Vec<u8>> {
    ask_if(is_of_our_user, peer, text, descriptor, patience)
}

fn ask_if(
    is_allowed: impl Fn(&UnixStream) -> io::Result<bool>,
    peer: &str,
    text: &str,
    descriptor: &OwnedFd,
    patience: Duration,
) -> io::Result<Vec<u8>> {
    let mut stream = connect(peer)?;
    if !is_allowed(&stream)? {
        let text = format!("another user's process listens at {peer}");
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor.as_fd()];
    ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    let sent = sendmsg(
        &stream,
        &[IoSlice::new(text.as_bytes())],
        &mut ancillary,
        SendFlags::NOSIGNAL,
    )?;
    stream.write_all(&text.as_bytes()[sent..])?;
    stream.shutdown(Shutdown::Write)?;
    let mut answer = vec![];
    stream.read_to_end(&mut answer)?;
    Ok(answer)
}

/// A text until its end, and the descriptor that came with its beginning.
pub fn receive(stream: &mut UnixStream) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut text = vec![0; 1 << 12];
    let received = recvmsg(
        &*stream,
        &mut [IoSliceMut::new(&mut text)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    text.truncate(received.bytes);
    let descriptor = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    stream.take(1 << 16).read_to_end(&mut text)?;
    Ok((text, descriptor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_listens_is_asked_before_anything_is_sent() {
        let name = format!("smalt-test-{}", std::process::id());
        let listener = listen(&name).unwrap();
        let descriptor = OwnedFd::from(tempfile::tempfile().unwrap());
        let ask = |ours: bool| ask_if(|_| Ok(ours), &name, "an offer", &descriptor, Duration::from_millis(50));
        assert_eq!(ask(false).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        let (mut stream, _) = listener.accept().unwrap();
        assert!(is_of_our_user(&stream).unwrap());
        let (text, received) = receive(&mut stream).unwrap();
        assert!(text.is_empty() && received.is_none(), "{text:?}");
        // The same of our own, which has no thread to answer.
        assert!(ask(true).is_err());
        let (mut stream, _) = listener.accept().unwrap();
        let (text, received) = receive(&mut stream).unwrap();
        assert!(text == b"an offer" && received.is_some());
    }
}
