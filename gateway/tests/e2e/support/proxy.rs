//! Real proxies in front of kas: HAProxy for TCP, nginx for HTTP and for TCP.

use std::{
    fs,
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::Command,
    time::Duration,
};

use testkit::skip::{installed, skipped};

use super::{Process, eventually};

/// The module of nginx for TCP, in Debian and its derivatives.
const STREAM_MODULE: &str = "/usr/lib/nginx/modules/ngx_stream_module.so";

/// A running proxy, which connects from [`Self::ADDRESS`].
pub(crate) struct Proxy {
    /// The addresses of the proxy, in the order of its servers.
    pub(crate) addresses: Vec<SocketAddr>,
    _process: Process,
}

impl Proxy {
    /// The address from which the proxy connects to kas.
    pub(crate) const ADDRESS: &str = "127.0.0.9";

    /// Starts HAProxy, which sends PROXY headers of version 2 with a checksum, and checks the servers with such headers. Skips
    /// the test without it.
    pub(crate) fn haproxy_or_skip(directory: &Path, servers: &[SocketAddr]) -> Option<Self> {
        if !is_installed("haproxy") {
            return None;
        }
        let addresses = free_addresses(servers.len());
        let mut config =
            "defaults\n  mode tcp\n  timeout connect 5s\n  timeout client 1h\n  timeout server 1h\n"
                .to_owned();
        for (address, server) in addresses.iter().zip(servers) {
            config += &format!(
                "listen {}\n  bind {address}\n  server kas {server} source {} send-proxy-v2 proxy-v2-options crc32c \
                 check check-send-proxy inter 100\n",
                server.port(),
                Self::ADDRESS,
            );
        }
        let file = directory.join("haproxy.cfg");
        fs::write(&file, config).unwrap();
        let mut command = program("haproxy");
        command.args(["-db", "-f"]).arg(file);
        Some(Self::start("haproxy", &mut command, addresses))
    }

    /// Starts nginx as an HTTP proxy that appends the address of the client to `X-Forwarded-For`, or skips the test.
    pub(crate) fn nginx_or_skip(directory: &Path, servers: &[SocketAddr]) -> Option<Self> {
        let server = |address: &SocketAddr, server: &SocketAddr| {
            format!(
                "  server {{\n    listen {address};\n    location / {{\n      proxy_pass http://{server};\n      \
                 proxy_bind {};\n      proxy_http_version 1.1;\n      proxy_set_header Host $http_host;\n      \
                 proxy_set_header Upgrade $http_upgrade;\n      proxy_set_header Connection $upgrade_or_close;\n      \
                 proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;\n    }}\n  }}\n",
                Self::ADDRESS,
            )
        };
        let map = "  map $http_upgrade $upgrade_or_close { default upgrade; '' close; }\n";
        let prefix = format!("http {{\n{map}{}", http_settings());
        Self::nginx(directory, &prefix, servers, server)
    }

    /// Starts nginx as an HTTP proxy that keeps idle connections to kas for a time, or skips the test. It does not repeat a
    /// request: if kas closes the connection of a request, the response is a 502.
    pub(crate) fn nginx_keepalive_or_skip(
        directory: &Path,
        kas: SocketAddr,
        keepalive_timeout: Duration,
    ) -> Option<Self> {
        let server = |address: &SocketAddr, kas: &SocketAddr| {
            format!(
                "  upstream kas {{\n    server {kas};\n    keepalive 16;\n    keepalive_timeout {}ms;\n    \
                 keepalive_requests 100000;\n  }}\n  server {{\n    listen {address};\n    keepalive_requests 100000;\n    \
                 location / {{\n      proxy_pass http://kas;\n      proxy_http_version 1.1;\n      \
                 proxy_set_header Connection '';\n      proxy_next_upstream off;\n    }}\n  }}\n",
                keepalive_timeout.as_millis(),
            )
        };
        Self::nginx(directory, &format!("http {{\n{}", http_settings()), &[kas], server)
    }

    /// Starts nginx as a proxy of TCP that sends PROXY headers of version 1, the only one that it can send. Skips the test
    /// without its module.
    pub(crate) fn nginx_stream_or_skip(directory: &Path, servers: &[SocketAddr]) -> Option<Self> {
        if !Path::new(STREAM_MODULE).is_file() {
            skipped("nginx has no stream module: .ci/install-tools installs libnginx-mod-stream");
            return None;
        }
        let server = |address: &SocketAddr, server: &SocketAddr| {
            let source = Self::ADDRESS;
            format!(
                "  server {{ listen {address}; proxy_pass {server}; proxy_bind {source}; proxy_protocol on; }}\n"
            )
        };
        Self::nginx(directory, &format!("load_module {STREAM_MODULE};\nstream {{\n"), servers, server)
    }

    fn nginx(
        directory: &Path,
        prefix: &str,
        servers: &[SocketAddr],
        section: impl Fn(&SocketAddr, &SocketAddr) -> String,
    ) -> Option<Self> {
        if !is_installed("nginx") {
            return None;
        }
        let addresses = free_addresses(servers.len());
        let sections: String =
            addresses.iter().zip(servers).map(|(address, server)| section(address, server)).collect();
        let (modules, block) = prefix.split_at(prefix.find(";\nstream").map_or(0, |end| end + 2));
        let config = format!("{modules}daemon off;\npid nginx.pid;\nevents {{}}\n{block}{sections}}}\n");
        fs::write(directory.join("nginx.conf"), config).unwrap();
        let mut command = program("nginx");
        command.arg("-p").arg(directory).args(["-e", "stderr", "-c", "nginx.conf"]);
        Some(Self::start("nginx", &mut command, addresses))
    }

    fn start(name: &str, command: &mut Command, addresses: Vec<SocketAddr>) -> Self {
        let process = Process::start(name, command);
        eventually("the proxy listens", || {
            addresses.iter().all(|address| TcpStream::connect(address).is_ok())
        });
        Self { addresses, _process: process }
    }
}

/// Returns the settings of nginx for HTTP that all tests share.
fn http_settings() -> String {
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("  {kind}_temp_path {kind};\n"));
    format!("  access_log off;\n{}", temporary.concat())
}

fn is_installed(name: &str) -> bool {
    let found = installed(name) || Path::new("/usr/sbin").join(name).is_file();
    if !found {
        skipped(&format!("there is no {name}: .ci/install-tools installs it"));
    }
    found
}

/// Returns a command for a program that Debian has in `/usr/sbin`, which may not be in `PATH`.
fn program(name: &str) -> Command {
    let mut command = Command::new(name);
    command.env("PATH", format!("{}:/usr/sbin", std::env::var("PATH").unwrap_or_default()));
    command
}

fn free_addresses(count: usize) -> Vec<SocketAddr> {
    let listeners: Vec<_> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    listeners.iter().map(|listener| listener.local_addr().unwrap()).collect()
}
