//! Tests of kas as a process: unwritable logs, signals and the limit of file descriptors.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
#![allow(clippy::disallowed_methods, reason = "there is no runtime: the tests wait for a process")]

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream},
    os::unix::{net::UnixDatagram, process::ExitStatusExt as _},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use tempfile::TempDir;
use testing::process::{Signal, send_signal};

mod listeners;

/// Each listener has its own IP address. kas chooses the ports, and its log may be unreadable.
const AGENT: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const PUBLIC: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);
const OBSERVABILITY: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 4);

/// The timeout of every wait.
const SOON: Duration = Duration::from_secs(20);

/// The state of a listening socket in `/proc/net/tcp`.
const LISTENING: &str = "0A";

/// A running kas.
struct Kas {
    child: Child,
    directory: TempDir,
}

impl Kas {
    /// Starts kas with this standard error. `shell` runs before kas, in the same process.
    fn start(log: impl Into<Stdio>, listen_grace: &str, shell: &str) -> Self {
        Self::start_with(log, listen_grace, shell, "")
    }

    /// Starts kas with additional sections of the configuration. The file `secret` has a key.
    fn start_with(log: impl Into<Stdio>, listen_grace: &str, shell: &str, sections: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let configuration = format!(
            "agent:\n  listen: {{address: '{AGENT}:0'}}\n  kubernetes_api:\n    listen: {{address: '{PUBLIC}:0', \
             listen_grace_period: {listen_grace}}}\n\
             observability: {{listen: {{address: '{OBSERVABILITY}:0'}}, logging: {{level: debug}}}}\n\
             identity: {{file: identity.yaml}}\n{sections}"
        );
        fs::write(directory.path().join("kas.yaml"), configuration).unwrap();
        fs::write(directory.path().join("identity.yaml"), "agents: []\ncallers: []\n").unwrap();
        fs::write(directory.path().join("secret"), "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n").unwrap();
        let run = format!("{shell} exec {} serve --config kas.yaml", env!("CARGO_BIN_EXE_kas"));
        let mut command = Command::new("sh");
        command.args(["-c", &run]).current_dir(&directory).stdin(Stdio::null()).stdout(Stdio::null());
        Self { child: command.stderr(log).spawn().unwrap(), directory }
    }

    /// Starts kas with an audit log in the file `audit.log`, or on standard output, which is that file as well.
    fn start_audited(audit: &str) -> Self {
        let shell = format!("sed -i 's/logging:/audit: {audit}, logging:/' kas.yaml; exec >>audit.log;");
        Self::start_with(Stdio::null(), "0s", &shell, "")
    }

    fn log(&mut self) -> impl std::io::Read + use<> {
        self.child.stderr.take().unwrap()
    }

    /// Waits for the listener at this IP address, and returns its address with the port.
    fn address(&self, ip: Ipv4Addr) -> SocketAddr {
        eventually("kas listens", || {
            let sockets: Vec<_> = fs::read_dir(format!("/proc/{}/fd", self.child.id()))
                .ok()?
                .filter_map(|entry| Some(fs::read_link(entry.ok()?.path()).ok()?.display().to_string()))
                .collect();
            let table = fs::read_to_string("/proc/net/tcp").unwrap();
            table.lines().skip(1).find_map(|line| {
                let fields: Vec<_> = line.split_whitespace().collect();
                let (address, port) = fields[1].split_once(':')?;
                // The kernel prints the address as a number in the byte order of the machine.
                let found = Ipv4Addr::from(u32::from_str_radix(address, 16).ok()?.to_ne_bytes());
                let ours = sockets.contains(&format!("socket:[{}]", fields[9]));
                let port = u16::from_str_radix(port, 16).ok()?;
                (ours && found == ip && fields[3] == LISTENING)
                    .then_some(SocketAddr::new(IpAddr::V4(ip), port))
            })
        })
    }

    fn get(&self, path: &str) -> String {
        let mut connection = TcpStream::connect(self.address(OBSERVABILITY)).unwrap();
        connection.set_read_timeout(Some(SOON)).unwrap();
        write!(connection, "GET {path} HTTP/1.1\r\nHost: kas\r\nConnection: close\r\n\r\n").unwrap();
        let mut response = String::new();
        connection.read_to_string(&mut response).unwrap();
        response
    }

    /// Returns the value of a metric without labels.
    fn metric(&self, name: &str) -> u64 {
        let metrics = self.get("/metrics");
        let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        value.unwrap_or_else(|| panic!("no {name} in {metrics}"))
    }

    /// Makes kas write many lines: at the level `debug`, it logs each connection without valid HTTP.
    fn fill_log(&self) {
        let address = self.address(OBSERVABILITY);
        for _ in 0..1500 {
            let mut connection = TcpStream::connect(address).unwrap();
            connection.set_read_timeout(Some(SOON)).unwrap();
            connection.write_all(b"no HTTP\r\n\r\n").unwrap();
            // Waits for the response or the end of the connection.
            let _ = connection.read(&mut [0]);
        }
    }

    /// Runs a command of kas in its directory. Returns its standard output, or its exit code and its error.
    fn command(&self, arguments: &str) -> Result<String, (i32, String)> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kas"));
        command.args(arguments.split(' ')).current_dir(&self.directory).env_remove("KAS_CONFIG");
        let output = command.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        match output.status.code() {
            Some(0) => Ok(text(output.stdout)),
            code => Err((code.unwrap(), text(output.stderr))),
        }
    }

    fn signal(&self, signal: Signal) {
        send_signal(self.child.id(), signal).unwrap();
    }

    /// Waits until kas exits, and returns its exit code, or the negative number of the signal that ended it.
    fn exit_code(&mut self) -> i32 {
        let status = eventually("kas ends", || self.child.try_wait().unwrap());
        status.code().unwrap_or_else(|| -status.signal().unwrap())
    }
}

impl Drop for Kas {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Polls until `poll` returns a value.
fn eventually<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = poll() {
            return found;
        }
        assert!(start.elapsed() < SOON, "not in time: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Asserts that kas serves requests and stops although its log is unwritable.
fn assert_serves_and_stops(mut kas: Kas) {
    kas.fill_log();
    assert!(kas.get("/liveness").starts_with("HTTP/1.1 200"));
    eventually("lost lines are counted", || (kas.metric("kas_log_lines_lost_total") > 0).then_some(()));
    assert_eq!(kas.metric("kas_panics_total"), 0);
    kas.signal(Signal::TERM);
    assert_eq!(kas.exit_code(), 0);
}

#[test]
fn log_with_closed_reader_does_not_disturb_kas() {
    let mut kas = Kas::start(Stdio::piped(), "0s", "");
    drop(kas.log());
    assert_serves_and_stops(kas);
}

#[test]
fn log_on_full_disk_does_not_disturb_kas() {
    assert_serves_and_stops(Kas::start(File::options().write(true).open("/dev/full").unwrap(), "0s", ""));
}

#[test]
fn unread_log_does_not_disturb_kas() {
    let mut kas = Kas::start(Stdio::piped(), "0s", "");
    let _unread = kas.log();
    kas.fill_log();
    assert!(kas.get("/liveness").starts_with("HTTP/1.1 200"));
    kas.signal(Signal::TERM);
    assert_eq!(kas.exit_code(), 0);
}

#[test]
fn last_lines_are_written_before_kas_ends() {
    let mut kas = Kas::start(Stdio::piped(), "0s", "");
    let mut log = kas.log();
    kas.address(OBSERVABILITY);
    eventually("kas is ready", || kas.get("/readiness").starts_with("HTTP/1.1 200").then_some(()));
    kas.signal(Signal::INT);
    let mut lines = String::new();
    log.read_to_string(&mut lines).unwrap();
    assert_eq!(kas.exit_code(), 0);
    assert!(lines.lines().last().unwrap().contains("stopped: all agents have left"), "{lines}");
}

#[test]
fn sighup_logs_each_reloaded_file() {
    let sections = "private_api: {listen: {address: '127.0.0.1:0', authentication_secret_file: secret}}\n\
                    api: {listen: {address: '127.0.0.1:0', authentication_secret_file: secret}}\n";
    let mut kas = Kas::start_with(Stdio::piped(), "0s", "", sections);
    let mut lines = BufReader::new(kas.log()).lines().map(Result::unwrap);
    eventually("kas is ready", || kas.get("/readiness").starts_with("HTTP/1.1 200").then_some(()));
    kas.signal(Signal::HUP);
    assert!(lines.any(|line| line.contains("SIGHUP: files are read again")));
    let mut reloaded: Vec<_> = lines.filter(|line| line.contains("file reloaded")).take(3).collect();
    assert!(reloaded.iter().all(|line| !line.contains("\"target\"")), "{reloaded:?}");
    reloaded.sort_by_key(|line| line.find("\"file\"").map(|start| line[start..].to_owned()));
    let files = [
        "api.listen.authentication_secret_file",
        "identity.file",
        "private_api.listen.authentication_secret_file",
    ];
    for (line, file) in reloaded.iter().zip(files) {
        assert!(line.contains(&format!("\"file\":\"{file}\"")), "{file}: {line}");
    }
}

#[test]
fn disable_command_has_effect_on_a_running_kas_until_enable() {
    let kas = Kas::start_with(
        Stdio::null(),
        "0s",
        "ulimit -c 0; echo 'rules: []' > off.yaml;",
        "disabled: {file: off.yaml}",
    );
    let readiness = |expected: &str| {
        eventually(expected, || kas.get("/readiness").ends_with(expected).then_some(()));
    };
    readiness("\r\n\r\nready\n");
    let rule = "--config kas.yaml --agent production --service kubernetes";
    kas.command(&format!("disable {rule} --reason incident --for 1h")).unwrap();
    assert_eq!(
        kas.command(&format!("disable {rule} --reason drill")).unwrap(),
        "disabled agent production, service kubernetes: drill\n"
    );
    readiness("ready, disabled\ndisabled: agent production, service kubernetes: drill\n");
    kas.command("disable --file off.yaml --all --reason maintenance --until 2999-01-01T00:00:00Z").unwrap();
    assert_eq!(
        kas.command("disable --file off.yaml --list").unwrap(),
        "agent production, service kubernetes: drill\neverything until 2999-01-01T00:00:00Z: maintenance\n"
    );

    let (code, error) = kas.command("enable --file off.yaml --agent production").unwrap_err();
    assert_eq!(code, 64);
    assert!(
        error.contains("no rule for exactly agent production; it has: agent production, service"),
        "{error}"
    );
    kas.command(&format!("enable {rule}")).unwrap();
    readiness("ready, disabled\ndisabled: everything until 2999-01-01T00:00:00Z: maintenance\n");
    assert_eq!(kas.command("enable --file off.yaml --every-rule").unwrap(), "enabled everything\n");
    readiness("\r\n\r\nready\n");
}

#[test]
fn disable_command_refuses_mistakes_and_leaves_an_invalid_file_alone() {
    let kas = Kas::start_with(Stdio::null(), "0s", "echo 'rules: [{all: yes}]' > bad.yaml;", "");
    for (arguments, expected) in [
        ("disable --reason a --all", "--file"),
        ("disable --file off.yaml --reason a", "name what to disable"),
        ("disable --file off.yaml --all", "--reason"),
        ("disable --file off.yaml --all --agent a --reason b", "cannot be used with"),
        ("disable --file off.yaml --agent UP --reason b", "names no agent"),
        ("disable --file off.yaml --all --reason b --until soon", "not a time in UTC"),
        ("disable --file bad.yaml --all --reason b", "bad.yaml:1:"),
        ("disable --config kas.yaml --all --reason b", "has no disabled.file"),
        ("enable --file off.yaml --all", "off.yaml: the file does not exist"),
        ("enable --file off.yaml", "--every-rule"),
        ("enable --file bad.yaml --every-rule", "bad.yaml:1:"),
    ] {
        // The files exist once kas listens.
        kas.address(OBSERVABILITY);
        let (code, error) = kas.command(arguments).unwrap_err();
        assert_eq!(code, 64, "{arguments}: {error}");
        assert!(error.contains(expected), "{arguments}: {error}");
    }
    let text = fs::read_to_string(kas.directory.path().join("bad.yaml")).unwrap();
    assert_eq!(text, "rules: [{all: yes}]\n");
    kas.command("disable --file /proc/none/off.yaml --all --reason b").unwrap_err();
}

#[test]
fn audit_log_is_written_to_a_file_or_to_standard_output() {
    let refused = |kas: &Kas| {
        let mut connection = TcpStream::connect(kas.address(PUBLIC)).unwrap();
        connection.set_read_timeout(Some(SOON)).unwrap();
        let request = "GET /agents/a/kubernetes/api HTTP/1.1\r\nHost: kas\r\nConnection: close\r\n\r\n";
        connection.write_all(request.as_bytes()).unwrap();
        connection.read_to_string(&mut String::new()).unwrap();
    };
    for audit in ["{sink: file, file: audit.log}", "{sink: stdout}"] {
        // The shell redirects standard output, and becomes kas.
        let mut kas = Kas::start_audited(audit);
        refused(&kas);
        kas.signal(Signal::TERM);
        assert_eq!(kas.exit_code(), 0);
        let lines = fs::read_to_string(kas.directory.path().join("audit.log")).unwrap();
        assert_eq!(lines.lines().count(), 1, "{lines}");
        assert!(lines.contains("\"reason\":\"unauthorized\""), "{lines}");
    }
}

/// A thread of jemalloc gives freed memory back also while nothing allocates.
#[test]
fn memory_is_given_back_while_kas_is_idle() {
    let kas = Kas::start(Stdio::null(), "0s", "");
    kas.address(OBSERVABILITY);
    let threads = fs::read_dir(format!("/proc/{}/task", kas.child.id())).unwrap();
    let names: Vec<_> =
        threads.filter_map(|thread| fs::read_to_string(thread.unwrap().path().join("comm")).ok()).collect();
    assert!(names.iter().any(|name| name.trim() == "jemalloc_bg_thd"), "{names:?}");
}

#[test]
fn second_signal_ends_kas_at_once() {
    for (first, second) in
        [(Signal::TERM, Signal::TERM), (Signal::INT, Signal::TERM), (Signal::TERM, Signal::INT)]
    {
        let mut kas = Kas::start(Stdio::null(), "1h", "");
        eventually("kas is ready", || kas.get("/readiness").starts_with("HTTP/1.1 200").then_some(()));
        kas.signal(first);
        eventually("kas is stopping", || kas.get("/readiness").starts_with("HTTP/1.1 503").then_some(()));
        kas.signal(second);
        assert_eq!(kas.exit_code(), 1, "{first:?}, {second:?}");
    }
}

#[test]
fn idle_connections_leave_descriptors_for_probes_and_agents() {
    let mut kas = Kas::start(Stdio::piped(), "0s", "ulimit -n 64;");
    let mut log = kas.log();
    let idle: Vec<_> = [PUBLIC, AGENT]
        .iter()
        .flat_map(|ip| (0..60).map(|_| TcpStream::connect(kas.address(*ip)).unwrap()))
        .collect();
    assert!(kas.get("/liveness").starts_with("HTTP/1.1 200"));
    let metrics = kas.get("/metrics");
    assert!(!metrics.contains("kas_limits_total{limit=\"unauthenticated-connections\"} 0"), "{metrics}");
    assert!(metrics.contains("kas_limits_total{limit=\"open-files\"} 0"), "{metrics}");
    drop(idle);
    kas.signal(Signal::TERM);
    assert_eq!(kas.exit_code(), 0);
    let mut lines = String::new();
    log.read_to_string(&mut lines).unwrap();
    assert!(lines.contains("the limit of open files is too low"), "{lines}");
}

#[test]
fn service_manager_is_told_of_start_watchdog_and_stop() {
    let directory = tempfile::tempdir().unwrap();
    let address = directory.path().join("notify");
    let socket = UnixDatagram::bind(&address).unwrap();
    socket.set_read_timeout(Some(SOON)).unwrap();
    let received = || {
        let mut buffer = [0; 64];
        let length = socket.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    };
    let variables = format!("export NOTIFY_SOCKET={} WATCHDOG_USEC=3000000;", address.display());
    let mut kas = Kas::start(Stdio::null(), "0s", &variables);
    let messages: BTreeSet<_> = [received(), received(), received()].into();
    assert_eq!(messages, BTreeSet::from(["READY=1".to_owned(), "WATCHDOG=1".to_owned()]));
    assert!(kas.get("/readiness").ends_with("\r\n\r\nready\n"));
    assert!(kas.metric("process_threads") > 3);
    kas.signal(Signal::TERM);
    while received() != "STOPPING=1" {
        // The watchdog gets its messages until the end.
    }
    assert_eq!(kas.exit_code(), 0);
}
