//! Messages to systemd: the start is complete, the process is alive, the process stops (sd_notify(3)).
//!
//! The crate `sd-notify` knows no abstract sockets (`@name`), and its write blocks if the service manager does not read.

use std::{
    env,
    ffi::OsStr,
    io,
    os::{
        linux::net::SocketAddrExt as _,
        unix::{
            ffi::OsStrExt as _,
            net::{SocketAddr, UnixDatagram},
        },
    },
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

/// Sends messages to the service manager. The default has none, and sends nothing. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Notifier {
    socket: Option<Arc<NotifySocket>>,
    /// The time without a sign of life after which the service manager ends the process.
    watchdog: Option<Duration>,
}

#[derive(Debug)]
struct NotifySocket {
    socket: UnixDatagram,
    address: SocketAddr,
}

/// Decides when the watchdog of the service manager gets a sign of life.
#[derive(Debug)]
pub(crate) struct Watchdog {
    notifier: Notifier,
    next: Option<Instant>,
}

impl Notifier {
    /// Returns the service manager of this process, as `NOTIFY_SOCKET` and `WATCHDOG_USEC` name it.
    pub fn from_env() -> Self {
        let Some(address) = env::var_os("NOTIFY_SOCKET").filter(|address| !address.is_empty()) else {
            return Self::default();
        };
        let socket = match NotifySocket::new(&address) {
            Ok(socket) => Some(Arc::new(socket)),
            Err(error) => {
                tracing::warn!(?address, %error, "NOTIFY_SOCKET cannot be used: systemd gets no messages");
                None
            }
        };
        let number = |name| env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
        // A shell between systemd and this process would have inherited the variable.
        let is_ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let watchdog = number("WATCHDOG_USEC").filter(|_| is_ours).map(Duration::from_micros);
        Self { socket, watchdog }
    }

    /// Reports that the start is complete.
    pub fn ready(&self) {
        self.send("READY=1");
    }

    /// Reports that the process stops.
    pub fn stopping(&self) {
        self.send("STOPPING=1");
    }

    /// Returns the watchdog of the service manager.
    pub(crate) fn watchdog(&self) -> Watchdog {
        let next = self.watchdog.is_some().then(Instant::now);
        Watchdog { notifier: self.clone(), next }
    }

    fn send(&self, message: &str) {
        let Some(NotifySocket { socket, address }) = self.socket.as_deref() else { return };
        if let Err(error) = socket.send_to_addr(message.as_bytes(), address) {
            tracing::warn!(%error, message, "systemd did not get a message");
        }
    }
}

impl NotifySocket {
    fn new(address: &OsStr) -> io::Result<Self> {
        let address = match address.as_bytes() {
            [b'/', ..] => SocketAddr::from_pathname(address)?,
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            _ => return Err(io::Error::other("it is neither a path nor an abstract name")),
        };
        let socket = UnixDatagram::unbound()?;
        // A service manager that does not read must not block the process.
        socket.set_nonblocking(true)?;
        Ok(Self { socket, address })
    }
}

impl Watchdog {
    /// Reports that the process is alive, three times in the period of the watchdog.
    pub(crate) fn alive(&mut self, now: Instant) {
        if let (Some(next), Some(period)) = (self.next, self.notifier.watchdog)
            && now >= next
        {
            self.notifier.send("WATCHDOG=1");
            self.next = Some(now + period / 3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(socket: &UnixDatagram) -> Option<String> {
        socket.set_nonblocking(true).unwrap();
        let mut buffer = [0; 64];
        let length = socket.recv(&mut buffer).ok()?;
        Some(String::from_utf8(buffer[..length].to_vec()).unwrap())
    }

    fn notifier(address: &OsStr, watchdog: Option<Duration>) -> Notifier {
        Notifier { socket: Some(Arc::new(NotifySocket::new(address).unwrap())), watchdog }
    }

    #[test]
    fn messages_arrive_at_paths_and_abstract_names() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let name = format!("kas-test-{}", std::process::id());
        let abstract_name = SocketAddr::from_abstract_name(&name).unwrap();
        for (socket, address) in [
            (UnixDatagram::bind(&path).unwrap(), path.clone().into_os_string()),
            (UnixDatagram::bind_addr(&abstract_name).unwrap(), format!("@{name}").into()),
        ] {
            let notifier = notifier(&address, None);
            notifier.ready();
            notifier.stopping();
            assert_eq!(received(&socket).as_deref(), Some("READY=1"));
            assert_eq!(received(&socket).as_deref(), Some("STOPPING=1"));
        }
    }

    #[test]
    fn address_of_another_kind_is_refused_and_absent_manager_is_no_error() {
        assert!(NotifySocket::new(OsStr::new("vsock:2:1")).is_err());
        assert!(NotifySocket::new(OsStr::new("relative")).is_err());
        Notifier::default().ready();
        notifier(OsStr::new("/nonexistent/notify"), None).ready();
    }

    #[tokio::test(start_paused = true)]
    async fn watchdog_gets_three_messages_in_its_period() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        let mut watchdog = notifier(path.as_os_str(), Some(Duration::from_secs(30))).watchdog();
        let start = Instant::now();
        for second in 0..60 {
            watchdog.alive(start + Duration::from_secs(second));
            let expected = (second % 10 == 0).then(|| "WATCHDOG=1".to_owned());
            assert_eq!(received(&socket), expected, "{second}");
        }
        let mut without = notifier(path.as_os_str(), None).watchdog();
        without.alive(start);
        assert_eq!(received(&socket), None);
    }
}
