//! Something between two programs: a load balancer, or a long way.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::Duration,
};

use parking_lot::Mutex;

/// A load balancer: connections go to each of some servers in turn. Those that there are stay where they are.
pub(crate) struct Relay {
    /// Where to connect.
    pub(crate) address: SocketAddr,
    servers: Arc<Mutex<Vec<SocketAddr>>>,
}

impl Relay {
    /// One in front of these servers.
    pub(crate) fn start(servers: Vec<SocketAddr>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let relay = Self { address: listener.local_addr().unwrap(), servers: Arc::new(Mutex::new(servers)) };
        let servers = Arc::clone(&relay.servers);
        thread::spawn(move || {
            for (turn, near) in listener.incoming().map_while(Result::ok).enumerate() {
                let servers = servers.lock().clone();
                let Ok(far) = TcpStream::connect(servers[turn % servers.len()]) else { continue };
                let [near_again, far_again] = [&near, &far].map(|stream| stream.try_clone().unwrap());
                thread::spawn(move || carry(&near, &far, |far| far.shutdown(Shutdown::Write)));
                thread::spawn(move || carry(&far_again, &near_again, |near| near.shutdown(Shutdown::Write)));
            }
        });
        relay
    }

    /// From now on, these.
    pub(crate) fn lead(&self, servers: Vec<SocketAddr>) {
        *self.servers.lock() = servers;
    }
}

/// A socket in `directory` from which it takes `delay` to another one, and as long back.
pub(crate) fn slow(directory: &Path, to: PathBuf, delay: Duration) -> PathBuf {
    let socket = directory.join("slow.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    thread::spawn(move || {
        for near in listener.incoming().map_while(Result::ok) {
            let Ok(far) = UnixStream::connect(&to) else { continue };
            let [near_again, far_again] = [&near, &far].map(|stream| stream.try_clone().unwrap());
            thread::spawn(move || carry_late(&near, &far, delay));
            thread::spawn(move || carry_late(&far_again, &near_again, delay));
        }
    });
    socket
}

/// What is written at once arrives at once, later.
fn carry_late(from: &UnixStream, to: &UnixStream, delay: Duration) {
    struct Late<'a>(&'a UnixStream, Duration);
    impl Write for Late<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            thread::sleep(self.1);
            self.0.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            self.0.flush()
        }
    }
    carry(from, Late(to, delay), |late| late.0.shutdown(Shutdown::Write));
}

fn carry<W: Write>(mut from: impl Read, mut to: W, end: impl FnOnce(W) -> io::Result<()>) {
    // Either end may go at any time.
    let _ = io::copy(&mut from, &mut to);
    let _ = end(to);
}
