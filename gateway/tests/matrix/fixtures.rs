//! Things that all cases share: the namespace with its pod and its list, a Prometheus, and the token of a user of an OpenID Provider.

use std::{
    fs,
    net::SocketAddr,
    sync::{Arc, OnceLock},
};

use serde_json::{Value, json};

use super::support::{
    Cluster, Kas, Kubectl, Namespace, OidcProvider, Process, Prometheus, curl, pod_manifest,
};

/// 12 MiB.
pub(crate) const LARGE: usize = 12 << 20;

/// The number of objects of the list.
pub(crate) const OBJECTS: usize = 5_000;

/// The pod: a web server with a small and a large page, and a program that counts the bytes of a request.
const SCRIPT: &str = r#"mkdir -p /www/cgi-bin
echo index >/www/index.html
echo small >/www/small
head -c 12582912 /dev/zero | tr '\0' x >/www/large
cat >/www/cgi-bin/count <<'END'
#!/bin/sh
printf '\r\n'
head -c $CONTENT_LENGTH | wc -c
END
chmod +x /www/cgi-bin/count
exec httpd -f -p 8080 -h /www"#;

/// Programs and objects that are made when the first case needs them.
#[derive(Default)]
pub(crate) struct Fixtures {
    place: OnceLock<Option<Arc<Place>>>,
    prometheus: OnceLock<Option<Prometheus>>,
    login: OnceLock<Option<Login>>,
}

/// The namespace of all cases.
pub(crate) struct Place {
    /// The cluster.
    pub(crate) cluster: Cluster,
    /// The namespace, without the tunnel.
    pub(crate) namespace: Namespace,
    /// `kubectl proxy`: HTTP to the API server without a credential.
    direct: SocketAddr,
    objects: OnceLock<()>,
    _proxy: Process,
}

/// A user who has logged in.
pub(crate) struct Login {
    /// The issuer of the token.
    pub(crate) issuer: String,
    /// The ID token.
    pub(crate) token: String,
    _provider: OidcProvider,
}

impl Fixtures {
    /// Returns the namespace, or skips the test without a cluster.
    pub(crate) fn place_or_skip(&self) -> Option<Arc<Place>> {
        self.place.get_or_init(|| Place::or_skip().map(Arc::new)).clone()
    }

    /// Returns a Prometheus, or skips the test without one.
    pub(crate) fn prometheus_or_skip(&self) -> Option<&Prometheus> {
        self.prometheus.get_or_init(Prometheus::or_skip).as_ref()
    }

    /// Returns a user of an OpenID Provider, or skips the test without one.
    pub(crate) fn login_or_skip(&self) -> Option<&Login> {
        self.login.get_or_init(Login::or_skip).as_ref()
    }
}

impl Place {
    fn or_skip() -> Option<Self> {
        let cluster = Cluster::or_skip()?;
        let namespace = cluster.namespace("matrix");
        // Before each agentk starts, so that none waits for its next list of labels.
        cluster.kubectl.ok(&["label", "namespace", &namespace.name, "matrix=place"]);
        namespace.kubectl.ok_with_stdin(&["create", "--filename=-"], &pod_manifest("shell", SCRIPT));
        let proxy = cluster.kubectl.start(&["proxy", "--port=0"]);
        let line = proxy.line("its address", |line| line.starts_with("Starting to serve on "));
        let direct = line.rsplit(' ').next().unwrap().parse().unwrap();
        namespace.kubectl.ok(&["wait", "--for=condition=Ready", "--timeout=40s", "pod/shell"]);
        Some(Self { cluster, namespace, direct, objects: OnceLock::new(), _proxy: proxy })
    }

    /// kubectl in the namespace, without the tunnel.
    pub(crate) fn kubectl(&self) -> &Kubectl {
        &self.namespace.kubectl
    }

    /// Returns the URL of a path of the API server.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.direct)
    }

    /// Returns the path of the ConfigMaps.
    pub(crate) fn config_maps(&self) -> String {
        format!("/api/v1/namespaces/{}/configmaps", self.namespace.name)
    }

    /// Returns the path of the list of 5,000 objects, which the first call creates.
    pub(crate) fn list(&self) -> String {
        self.objects.get_or_init(|| self.create_objects());
        format!("{}?labelSelector=matrix%3Dlist", self.config_maps())
    }

    fn create_objects(&self) {
        let directory = tempfile::tempdir().unwrap();
        let object = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"generateName": "item-", "labels": {"matrix": "list"}},
            "data": {"key": "x".repeat(LARGE / OBJECTS)},
        });
        let file = directory.path().join("object.json");
        fs::write(&file, object.to_string()).unwrap();
        // The API server ignores the parameter, which makes curl send the request so many times.
        let url = self.url(&format!("{}?number=[1-{OBJECTS}]", self.config_maps()));
        let data = format!("@{}", file.display());
        let response = curl(&[
            "--parallel",
            "--parallel-max",
            "20",
            "--max-time",
            "120",
            "--output",
            "/dev/null",
            "--header",
            "Content-Type: application/json",
            "--data-binary",
            &data,
            &url,
        ]);
        assert!(!response.error.contains("curl:"), "{}", response.error);
    }
}

impl Login {
    fn or_skip() -> Option<Self> {
        let provider = OidcProvider::or_skip()?;
        let cache = tempfile::tempdir().unwrap();
        let mut command = Kas::command();
        command.args(["login", "--issuer", &provider.url, "--client-id", OidcProvider::CLIENT, "--browser"]);
        command.args(["--redirect-uri", OidcProvider::REDIRECT]).env("BROWSER", "true");
        command.env("XDG_CACHE_HOME", cache.path());
        let exec = json!({
            "apiVersion": "client.authentication.k8s.io/v1",
            "kind": "ExecCredential",
            "spec": {"interactive": false},
        });
        let mut login = Process::start("kas login", command.env("KUBERNETES_EXEC_INFO", exec.to_string()));
        let page = login.line("the page of the login", |line| line.starts_with("http"));
        provider.log_in(&page);
        assert_eq!(login.exit_code(), 0, "{}", login.printed());
        let line = login.line("the token", |line| line.starts_with('{'));
        let credential: Value = serde_json::from_str(&line).unwrap();
        let token = credential["status"]["token"].as_str().unwrap().to_owned();
        Some(Self { issuer: provider.url.clone(), token, _provider: provider })
    }
}
