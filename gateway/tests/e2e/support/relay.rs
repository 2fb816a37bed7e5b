//! TCP relays between two programs: a load balancer, a link that fails, and a socket with a delay.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use parking_lot::Mutex;

/// A round-robin load balancer for TCP connections. A change of its servers does not affect existing connections.
pub(crate) struct LoadBalancer {
    /// The address of the load balancer.
    pub(crate) address: SocketAddr,
    servers: Arc<Mutex<Vec<SocketAddr>>>,
}

impl LoadBalancer {
    /// Starts a load balancer in front of these servers.
    pub(crate) fn start(servers: Vec<SocketAddr>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let balancer =
            Self { address: listener.local_addr().unwrap(), servers: Arc::new(Mutex::new(servers)) };
        let servers = Arc::clone(&balancer.servers);
        thread::spawn(move || {
            for (turn, near) in listener.incoming().map_while(Result::ok).enumerate() {
                let servers = servers.lock().clone();
                let Ok(far) = TcpStream::connect(servers[turn % servers.len()]) else { continue };
                let [near_again, far_again] = [&near, &far].map(|stream| stream.try_clone().unwrap());
                thread::spawn(move || copy_until_closed(&near, &far, |far| far.shutdown(Shutdown::Write)));
                thread::spawn(move || {
                    copy_until_closed(&far_again, &near_again, |near| near.shutdown(Shutdown::Write))
                });
            }
        });
        balancer
    }

    /// Replaces the servers for new connections.
    pub(crate) fn set_servers(&self, servers: Vec<SocketAddr>) {
        *self.servers.lock() = servers;
    }
}

/// A link to a server. It can stop forwarding, as a network that loses all packets: connections stay open, and bytes that were sent
/// meanwhile arrive later.
pub(crate) struct Link {
    /// The address of the near end.
    pub(crate) address: SocketAddr,
    state: Arc<LinkState>,
}

#[derive(Default)]
struct LinkState {
    is_cut: AtomicBool,
    delay_millis: AtomicU64,
}

impl Link {
    /// Starts a link to a server.
    pub(crate) fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let link = Self { address: listener.local_addr().unwrap(), state: Arc::default() };
        let state = Arc::clone(&link.state);
        thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let Ok(far) = TcpStream::connect(server) else { continue };
                for [from, to] in [[&near, &far], [&far, &near]] {
                    let [from, to] = [from, to].map(|stream| stream.try_clone().unwrap());
                    let state = Arc::clone(&state);
                    let writer = LinkWriter { to, state };
                    thread::spawn(move || {
                        copy_until_closed(&from, writer, |writer| writer.to.shutdown(Shutdown::Write))
                    });
                }
            }
        });
        link
    }

    /// Stops or begins to forward.
    pub(crate) fn set_cut(&self, is_cut: bool) {
        self.state.is_cut.store(is_cut, Relaxed);
    }

    /// Sets the delay of each write in each direction.
    pub(crate) fn set_delay(&self, delay: Duration) {
        self.state.delay_millis.store(delay.as_millis().try_into().unwrap(), Relaxed);
    }
}

/// Writes when the link forwards.
struct LinkWriter {
    to: TcpStream,
    state: Arc<LinkState>,
}

impl Write for LinkWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        thread::sleep(Duration::from_millis(self.state.delay_millis.load(Relaxed)));
        while self.state.is_cut.load(Relaxed) {
            thread::sleep(Duration::from_millis(5));
        }
        self.to.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// Creates a Unix socket in `directory` that forwards to another one with a delay in each direction.
pub(crate) fn start_delayed_socket(directory: &Path, to: PathBuf, delay: Duration) -> PathBuf {
    let socket = directory.join("slow.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    thread::spawn(move || {
        for near in listener.incoming().map_while(Result::ok) {
            let Ok(far) = UnixStream::connect(&to) else { continue };
            let [near_again, far_again] = [&near, &far].map(|stream| stream.try_clone().unwrap());
            thread::spawn(move || copy_delayed(&near, &far, delay));
            thread::spawn(move || copy_delayed(&far_again, &near_again, delay));
        }
    });
    socket
}

/// Copies bytes, and sleeps before each write.
fn copy_delayed(from: &UnixStream, to: &UnixStream, delay: Duration) {
    struct DelayedWriter<'a>(&'a UnixStream, Duration);
    impl Write for DelayedWriter<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            thread::sleep(self.1);
            self.0.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            self.0.flush()
        }
    }
    copy_until_closed(from, DelayedWriter(to, delay), |writer| writer.0.shutdown(Shutdown::Write));
}

fn copy_until_closed<W: Write>(mut from: impl Read, mut to: W, end: impl FnOnce(W) -> io::Result<()>) {
    // Either end may close the connection at any time.
    let _ = io::copy(&mut from, &mut to);
    let _ = end(to);
}
