//! Reverse proxies with TLS in front of kas or agentk, as their documentation shows them for WebSockets.

use std::{
    fs,
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::Command,
};

use testing::skip::{installed, program_path, skipped};

use super::{
    support::{Certificates, Process, eventually},
    values::{Front, Transport},
};

/// A program.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ReverseProxy {
    Nginx,
    Haproxy,
    Apache,
    Caddy,
}

/// A running proxy.
pub(crate) struct Proxy {
    /// One address for each server, in their order.
    pub(crate) addresses: Vec<SocketAddr>,
    _process: Process,
}

impl Transport {
    /// Returns the proxy on the way of the tunnel.
    pub(crate) fn proxy(self) -> Option<ReverseProxy> {
        match self {
            Self::Nginx => Some(ReverseProxy::Nginx),
            Self::Haproxy => Some(ReverseProxy::Haproxy),
            Self::Apache => Some(ReverseProxy::Apache),
            Self::Caddy => Some(ReverseProxy::Caddy),
            Self::Ws | Self::Wss | Self::Grpc | Self::Grpcs => None,
        }
    }
}

impl Front {
    /// Returns the proxy on the way of callers.
    pub(crate) fn proxy(self) -> Option<ReverseProxy> {
        match self {
            Self::Direct => None,
            Self::Nginx => Some(ReverseProxy::Nginx),
            Self::Haproxy => Some(ReverseProxy::Haproxy),
            Self::Apache => Some(ReverseProxy::Apache),
            Self::Caddy => Some(ReverseProxy::Caddy),
        }
    }
}

impl ReverseProxy {
    /// Starts the proxy in an empty directory, or skips the test without the program. The servers speak HTTP/1.1 without TLS.
    pub(crate) fn start_or_skip(
        self,
        directory: &Path,
        tls: &Certificates,
        servers: &[SocketAddr],
    ) -> Option<Proxy> {
        let name = match self {
            Self::Nginx => "nginx",
            Self::Haproxy => "haproxy",
            Self::Apache => "apache2",
            Self::Caddy => "caddy",
        };
        let program = program_path(name).unwrap_or_else(|| Path::new("/usr/sbin").join(name));
        if !program.is_file() && !installed(name) {
            skipped(&format!("there is no {name}: .ci/install-tools installs it"));
            return None;
        }
        let listeners: Vec<_> = servers.iter().map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let addresses: Vec<_> = listeners.iter().map(|listener| listener.local_addr().unwrap()).collect();
        drop(listeners);
        let pairs = addresses.iter().copied().zip(servers.iter().copied());
        let mut command = Command::new(program);
        match self {
            Self::Nginx => nginx(&mut command, directory, tls, pairs),
            Self::Haproxy => haproxy(&mut command, directory, tls, pairs),
            Self::Apache => apache(&mut command, directory, tls, pairs),
            Self::Caddy => caddy(&mut command, directory, tls, pairs),
        }
        let process = Process::start(name, &mut command);
        eventually("the proxy listens", || {
            addresses.iter().all(|address| TcpStream::connect(address).is_ok())
        });
        Some(Proxy { addresses, _process: process })
    }
}

fn nginx(
    command: &mut Command,
    directory: &Path,
    tls: &Certificates,
    pairs: impl Iterator<Item = (SocketAddr, SocketAddr)>,
) {
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("  {kind}_temp_path {kind};\n"));
    let mut config = format!(
        "daemon off;\nmaster_process off;\npid nginx.pid;\nevents {{}}\nhttp {{\n{}  access_log off;\n  \
         map $http_upgrade $upgrade_or_close {{ default upgrade; '' close; }}\n  ssl_certificate {};\n  \
         ssl_certificate_key {};\n",
        temporary.concat(),
        tls.certificate.display(),
        tls.key.display(),
    );
    for (address, server) in pairs {
        config += &format!(
            "  server {{\n    listen {address} ssl;\n    client_max_body_size 0;\n    location / {{\n      \
             proxy_pass http://{server};\n      proxy_http_version 1.1;\n      proxy_buffering off;\n      \
             proxy_request_buffering off;\n      proxy_read_timeout 1h;\n      proxy_send_timeout 1h;\n      \
             proxy_set_header Host $http_host;\n      proxy_set_header Upgrade $http_upgrade;\n      \
             proxy_set_header Connection $upgrade_or_close;\n      \
             proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;\n    }}\n  }}\n"
        );
    }
    fs::write(directory.join("nginx.conf"), config + "}\n").unwrap();
    command.arg("-p").arg(directory).args(["-e", "stderr", "-c", "nginx.conf"]);
}

fn haproxy(
    command: &mut Command,
    directory: &Path,
    tls: &Certificates,
    pairs: impl Iterator<Item = (SocketAddr, SocketAddr)>,
) {
    let both = directory.join("both.pem");
    let pem = [&tls.certificate, &tls.key].map(|file| fs::read_to_string(file).unwrap()).concat();
    fs::write(&both, pem).unwrap();
    let mut config =
        "defaults\n  mode http\n  option http-no-delay\n  timeout connect 5s\n  timeout client 1h\n  \
                      timeout server 1h\n  timeout tunnel 1h\n"
            .to_owned();
    for (address, server) in pairs {
        config += &format!(
            "listen {}\n  bind {address} ssl crt {} alpn h2,http/1.1\n  option forwardfor\n  server kas {server}\n",
            address.port(),
            both.display(),
        );
    }
    let file = directory.join("haproxy.cfg");
    fs::write(&file, config).unwrap();
    command.args(["-db", "-f"]).arg(file);
}

fn apache(
    command: &mut Command,
    directory: &Path,
    tls: &Certificates,
    pairs: impl Iterator<Item = (SocketAddr, SocketAddr)>,
) {
    let modules = ["mpm_event", "authz_core", "socache_shmcb", "ssl", "proxy", "proxy_http"]
        .map(|name| format!("LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so\n"));
    let mut config = format!(
        "{}ServerRoot {directory}\nDefaultRuntimeDir {directory}\nPidFile {directory}/pid\nServerName localhost\nErrorLog /dev/stderr\nTimeout 3600\nProxyTimeout 3600\n\
         LimitRequestBody 0\nSSLSessionCache none\nAllowEncodedSlashes NoDecode\n",
        modules.concat(),
        directory = directory.display(),
    );
    for (address, server) in pairs {
        config += &format!(
            "Listen {address}\n<VirtualHost {address}>\n  SSLEngine on\n  SSLCertificateFile {}\n  SSLCertificateKeyFile {}\n  \
             ProxyPreserveHost On\n  ProxyPass / http://{server}/ nocanon upgrade=ANY flushpackets=on\n</VirtualHost>\n",
            tls.certificate.display(),
            tls.key.display(),
        );
    }
    let file = directory.join("apache.conf");
    fs::write(&file, config).unwrap();
    // One process: further ones would survive the SIGKILL at the end of the test.
    command.args(["-X", "-f"]).arg(file);
}

fn caddy(
    command: &mut Command,
    directory: &Path,
    tls: &Certificates,
    pairs: impl Iterator<Item = (SocketAddr, SocketAddr)>,
) {
    let mut config = "{\n  admin off\n  auto_https off\n  persist_config off\n}\n".to_owned();
    for (address, server) in pairs {
        config += &format!(
            "https://:{} {{\n  bind 127.0.0.1\n  tls {} {}\n  reverse_proxy {server} {{\n    flush_interval -1\n  }}\n}}\n",
            address.port(),
            tls.certificate.display(),
            tls.key.display(),
        );
    }
    let file = directory.join("Caddyfile");
    fs::write(&file, config).unwrap();
    command.args(["run", "--adapter", "caddyfile", "--config"]).arg(file);
    command.env("HOME", directory).env("XDG_DATA_HOME", directory).env("XDG_CONFIG_HOME", directory);
}
