//! Real proxies in front of kas: HAProxy for TCP, nginx for HTTP and for TCP.

use std::{
    fs,
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::Command,
    time::Duration,
};

use testing::skip::{installed, skipped};

use super::{Process, command_in_network, eventually, run_in_network};

/// The module of nginx for TCP, in Debian and its derivatives.
const STREAM_MODULE: &str = "/usr/lib/nginx/modules/ngx_stream_module.so";

/// The network of a proxy.
pub(crate) struct ProxyHost {
    /// The network namespace, or `None` for that of the machine.
    pub(crate) network: Option<String>,
    /// The address of the proxy.
    pub(crate) address: String,
}

impl ProxyHost {
    /// Returns a command for a program that Debian has in `/usr/sbin`, which may not be in `PATH`.
    fn command(&self, name: &str) -> Command {
        let mut command = command_in_network(self.network.as_deref(), Path::new(name));
        command.env("PATH", format!("{}:/usr/sbin", std::env::var("PATH").unwrap_or_default()));
        command
    }

    fn free_addresses(&self, count: usize) -> Vec<SocketAddr> {
        let bind = || TcpListener::bind((&*self.address, 0)).unwrap();
        run_in_network(self.network.as_deref(), || {
            let listeners: Vec<_> = (0..count).map(|_| bind()).collect();
            listeners.iter().map(|listener| listener.local_addr().unwrap()).collect()
        })
    }
}

/// A running proxy.
pub(crate) struct Proxy {
    /// The addresses of the proxy, in the order of its servers.
    pub(crate) addresses: Vec<SocketAddr>,
    _process: Process,
}

impl Proxy {
    /// Starts HAProxy, which sends PROXY headers of version 2 with a checksum, and checks the servers with such headers. Skips
    /// the test without it.
    pub(crate) fn haproxy_or_skip(
        host: &ProxyHost,
        directory: &Path,
        servers: &[SocketAddr],
    ) -> Option<Self> {
        if !is_installed("haproxy") {
            return None;
        }
        let addresses = host.free_addresses(servers.len());
        let mut config =
            "defaults\n  mode tcp\n  timeout connect 5s\n  timeout client 1h\n  timeout server 1h\n"
                .to_owned();
        for (address, server) in addresses.iter().zip(servers) {
            config += &format!(
                "listen {}\n  bind {address}\n  server kas {server} send-proxy-v2 proxy-v2-options crc32c \
                 check check-send-proxy inter 100\n",
                server.port(),
            );
        }
        let file = directory.join("haproxy.cfg");
        fs::write(&file, config).unwrap();
        let mut command = host.command("haproxy");
        command.args(["-db", "-f"]).arg(file);
        Some(Self::start(host, "haproxy", &mut command, addresses))
    }

    /// Starts nginx as an HTTP proxy that appends the address of the client to `X-Forwarded-For`, or skips the test.
    pub(crate) fn nginx_or_skip(host: &ProxyHost, directory: &Path, servers: &[SocketAddr]) -> Option<Self> {
        let server = |address: &SocketAddr, server: &SocketAddr| {
            format!(
                "  server {{\n    listen {address};\n    location / {{\n      proxy_pass http://{server};\n      \
                 proxy_http_version 1.1;\n      proxy_set_header Host $http_host;\n      \
                 proxy_set_header Upgrade $http_upgrade;\n      proxy_set_header Connection $upgrade_or_close;\n      \
                 proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;\n    }}\n  }}\n",
            )
        };
        let map = "  map $http_upgrade $upgrade_or_close { default upgrade; '' close; }\n";
        let prefix = format!("http {{\n{map}{}", http_settings());
        Self::nginx(host, directory, &prefix, servers, server)
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
        let host = ProxyHost { network: None, address: "127.0.0.1".to_owned() };
        Self::nginx(&host, directory, &format!("http {{\n{}", http_settings()), &[kas], server)
    }

    /// Starts nginx as a proxy of TCP, with the PROXY headers that it can send, of version 1, or without any. Skips the test
    /// without its module.
    pub(crate) fn nginx_stream_or_skip(
        host: &ProxyHost,
        directory: &Path,
        servers: &[SocketAddr],
        proxy_header: bool,
    ) -> Option<Self> {
        if !Path::new(STREAM_MODULE).is_file() {
            skipped("nginx has no stream module: .ci/install-tools installs libnginx-mod-stream");
            return None;
        }
        let server = |address: &SocketAddr, server: &SocketAddr| {
            let header = if proxy_header { "on" } else { "off" };
            format!("  server {{ listen {address}; proxy_pass {server}; proxy_protocol {header}; }}\n")
        };
        Self::nginx(host, directory, &format!("load_module {STREAM_MODULE};\nstream {{\n"), servers, server)
    }

    fn nginx(
        host: &ProxyHost,
        directory: &Path,
        prefix: &str,
        servers: &[SocketAddr],
        section: impl Fn(&SocketAddr, &SocketAddr) -> String,
    ) -> Option<Self> {
        if !is_installed("nginx") {
            return None;
        }
        let addresses = host.free_addresses(servers.len());
        let sections: String =
            addresses.iter().zip(servers).map(|(address, server)| section(address, server)).collect();
        let (modules, block) = prefix.split_at(prefix.find(";\nstream").map_or(0, |end| end + 2));
        // Workers would survive the SIGKILL of their master at the end of the test.
        let process = "daemon off;\nmaster_process off;\npid nginx.pid;\n";
        let config = format!("{modules}{process}events {{}}\n{block}{sections}}}\n");
        fs::write(directory.join("nginx.conf"), config).unwrap();
        let mut command = host.command("nginx");
        command.arg("-p").arg(directory).args(["-e", "stderr", "-c", "nginx.conf"]);
        Some(Self::start(host, "nginx", &mut command, addresses))
    }

    fn start(host: &ProxyHost, name: &str, command: &mut Command, addresses: Vec<SocketAddr>) -> Self {
        let process = Process::start(name, command);
        eventually("the proxy listens", || {
            run_in_network(host.network.as_deref(), || {
                addresses.iter().all(|address| TcpStream::connect(address).is_ok())
            })
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
