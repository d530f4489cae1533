//! Addresses at which an agent listens or is dialled. Python parses the texts; this module resolves host names, once for each address.

use std::io;
use std::mem::ManuallyDrop;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener, UnixStream};

use crate::sys;

/// Connections that the kernel queues until the process accepts them, unless the system's own limit is lower (usually 4096). The kernel
/// drops the packets of connections beyond this number, and their clients retry after a second. The value is high so that a flood does not
/// fill the queue between two accepts.
const BACKLOG: libc::c_int = 4096;

/// An address that can be dialled or listened at.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Address {
    Tcp {
        /// A host name or a numeric address, as the user wrote it.
        host: String,
        port: u16,
    },
    /// A path, or a name in the abstract namespace, which begins with `@`.
    Unix(String),
    /// The descriptor of a socket that listens already, inherited from the parent process.
    Inherited(RawFd),
}

fn unix(name: &str) -> io::Result<UnixAddr> {
    match name.strip_prefix('@') {
        Some(rest) => UnixAddr::from_abstract_name(rest),
        None => UnixAddr::from_pathname(name),
    }
}

impl Address {
    /// Resolves the host name; blocks as long as the resolver takes. Empty for addresses that are not TCP.
    pub fn resolve(&self) -> io::Result<Vec<SocketAddr>> {
        match self {
            Address::Tcp { host, port } => Ok((host.trim_matches(['[', ']']), *port).to_socket_addrs()?.collect()),
            _ => Ok(vec![]),
        }
    }

    /// The host name or numeric address; empty for addresses that are not TCP.
    pub fn name(&self) -> String {
        if let Address::Tcp { host, .. } = self { host.clone() } else { String::new() }
    }

    pub fn is_unix(&self) -> bool {
        matches!(self, Address::Unix(_))
    }

    /// Creates a listening socket; returns it with its port (0 for a unix socket).
    pub fn listen(&self) -> io::Result<(OwnedFd, u16)> {
        match self {
            Address::Tcp { host, port } => {
                let addresses: Vec<SocketAddr> = match host.as_str() {
                    // Both address families, where the system has both.
                    "*" | "" => vec![([0u16; 8], *port).into(), ([0u8; 4], *port).into()],
                    _ => self.resolve()?,
                };
                let mut last = io::Error::new(io::ErrorKind::AddrNotAvailable, "the name has no address");
                for address in addresses {
                    match TcpListener::bind(address) {
                        Ok(l) => {
                            l.set_nonblocking(true)?;
                            let port = l.local_addr()?.port();
                            // SAFETY: no pointers. If the call fails, the backlog of the standard library remains.
                            unsafe { libc::listen(l.as_raw_fd(), BACKLOG) };
                            return Ok((l.into(), port));
                        }
                        Err(e) => last = e,
                    }
                }
                Err(last)
            }
            Address::Unix(name) => {
                let l = UnixListener::bind_addr(&unix(name)?)?;
                l.set_nonblocking(true)?;
                Ok((l.into(), 0))
            }
            Address::Inherited(fd) => {
                // SAFETY: the program that started this process handed the descriptor over. A descriptor that is no listening socket is not
                // closed.
                let l = ManuallyDrop::new(unsafe { TcpListener::from_raw_fd(*fd) });
                let port = l.local_addr().map_err(|e| named(*fd, &e.to_string()))?.port();
                if port == 0 {
                    return Err(named(*fd, "the socket is not bound"));
                }
                l.set_nonblocking(true)?;
                sys::set_close_on_exec(*fd)?;
                // `listen` on a socket that listens already only changes its backlog. SAFETY: no pointers.
                if unsafe { libc::listen(*fd, BACKLOG) } < 0 {
                    return Err(named(*fd, &io::Error::last_os_error().to_string()));
                }
                Ok((ManuallyDrop::into_inner(l).into(), port))
            }
        }
    }

    /// Connects to a unix socket. Such a connection is complete when the call returns.
    pub fn connect_unix(&self) -> io::Result<OwnedFd> {
        let Address::Unix(name) = self else { return Err(io::ErrorKind::InvalidInput.into()) };
        let s = UnixStream::connect_addr(&unix(name)?)?;
        s.set_nonblocking(true)?;
        Ok(s.into())
    }
}

/// An error that names the descriptor.
fn named(fd: RawFd, why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("descriptor {fd}: {why}"))
}

/// Accepts one connection; returns it with a name for its peer, for messages. `None` if no connection waits.
pub fn accept(listener: RawFd, is_unix: bool) -> io::Result<Option<(OwnedFd, String)>> {
    // SAFETY: plain system call on a descriptor that the caller holds.
    let fd = unsafe { libc::accept4(listener, std::ptr::null_mut(), std::ptr::null_mut(), libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) };
    if fd < 0 {
        let e = io::Error::last_os_error();
        return if e.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(e) };
    }
    // SAFETY: the kernel has just returned this descriptor.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    if is_unix {
        let user = sys::peer_user(fd.as_raw_fd()).map_or("an unknown user".to_owned(), |u| format!("user {u}"));
        return Ok(Some((fd, user)));
    }
    let stream = TcpStream::from(fd);
    let _ = stream.set_nodelay(true);
    let name = stream.peer_addr().map_or("an unknown address".to_owned(), |a| a.to_string());
    Ok(Some((stream.into(), name)))
}

/// Starts a TCP connection. The socket is writable when the attempt has ended; `connected` returns its outcome.
pub fn connect_tcp(to: &SocketAddr) -> io::Result<OwnedFd> {
    let family = if to.is_ipv6() { libc::AF_INET6 } else { libc::AF_INET };
    // SAFETY: plain system calls; the length passed is the size of the address.
    unsafe {
        let fd = libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        let fd = OwnedFd::from_raw_fd(fd);
        let one: libc::c_int = 1;
        libc::setsockopt(fd.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_NODELAY, (&raw const one).cast(), 4);
        let done = match to {
            SocketAddr::V4(a) => {
                let mut raw: libc::sockaddr_in = std::mem::zeroed();
                raw.sin_family = libc::AF_INET as u16;
                raw.sin_port = a.port().to_be();
                raw.sin_addr.s_addr = u32::from_ne_bytes(a.ip().octets());
                libc::connect(fd.as_raw_fd(), (&raw const raw).cast(), size_of_val(&raw) as u32)
            }
            SocketAddr::V6(a) => {
                let mut raw: libc::sockaddr_in6 = std::mem::zeroed();
                raw.sin6_family = libc::AF_INET6 as u16;
                raw.sin6_port = a.port().to_be();
                raw.sin6_addr.s6_addr = a.ip().octets();
                raw.sin6_scope_id = a.scope_id();
                libc::connect(fd.as_raw_fd(), (&raw const raw).cast(), size_of_val(&raw) as u32)
            }
        };
        let e = io::Error::last_os_error();
        if done < 0 && e.raw_os_error() != Some(libc::EINPROGRESS) {
            return Err(e);
        }
        Ok(fd)
    }
}

/// The outcome of a connection that `connect_tcp` started.
pub fn connected(fd: RawFd) -> io::Result<()> {
    let mut error: libc::c_int = 0;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the pointer and the length describe one int.
    if unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, (&raw mut error).cast(), &mut len) } < 0 {
        return Err(io::Error::last_os_error());
    }
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
}
