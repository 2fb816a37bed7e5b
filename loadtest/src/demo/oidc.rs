//! The OpenID Provider of the tests, and a login with `kas login`.

use std::{
    net::TcpListener,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use agentk_core::upstream::{ClientTls, ClientTlsConfig, Upstream, UpstreamConfig};
use anyhow::{Context as _, ensure};
use http::{
    HeaderMap, Request, StatusCode, Uri,
    header::{CONTENT_TYPE, LOCATION},
};
use http_body_util::BodyExt as _;
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::Command,
    time::{Instant, sleep, timeout},
};
use tunnel::Body;

use crate::installation::stack::{
    AGENT, START,
    process::{ChildProcess, find},
};

/// The program, in the folder of the build.
pub(super) const PROGRAM: &str = "oidc-provider/server";
/// The name of the issuer in the configuration of kas.
const NAME: &str = "demo-login";
/// The client of `kas login` and of the web page, and the redirects that the provider allows for it, with any port.
const CLIENT: &str = "native";
const REDIRECT: &str = "http://localhost/auth/callback";
const PAGE_REDIRECT: &str = "http://localhost/web/v1/callback/demo-login";
/// The user of the provider.
pub(super) const USER: &str = "test-user@localhost";
pub(super) const PASSWORD: &str = "verysecure";
/// The most redirects of a login.
const MAX_REDIRECTS: usize = 10;

/// A running provider.
pub(super) struct DemoIssuer {
    url: String,
    _process: ChildProcess,
}

impl DemoIssuer {
    /// Starts the provider, or returns `None` if it is not built.
    pub(super) async fn start(directory: &Path) -> anyhow::Result<Option<Self>> {
        let this = std::env::current_exe()?;
        let build = this.ancestors().nth(2).context("the program is in a folder of the build")?;
        let program = build.join(PROGRAM);
        if !program.is_file() {
            return Ok(None);
        }
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut command = Command::new(program);
        command.env("PORT", port.to_string()).env("REDIRECT_URI", format!("{REDIRECT},{PAGE_REDIRECT}"));
        let log = directory.join("oidc-provider.log");
        let (process, _) = ChildProcess::start(command, &log, None, START).await?;
        let issuer = Self { url: format!("http://localhost:{port}/"), _process: process };
        issuer.wait().await?;
        Ok(Some(issuer))
    }

    async fn wait(&self) -> anyhow::Result<()> {
        let document = format!("{}.well-known/openid-configuration", self.url);
        let deadline = Instant::now() + START;
        loop {
            match request(&document, None).await {
                Ok((status, ..)) if status.is_success() => return Ok(()),
                result if Instant::now() > deadline => {
                    result.context("the OpenID Provider does not respond; see oidc-provider.log")?;
                }
                _ => {}
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// Returns the section `oidc` of the configuration of kas.
    pub(super) fn section(&self) -> String {
        let url = &self.url;
        format!(
            "oidc: {{issuers: [{{name: {NAME}, issuer: \"{url}\", audiences: [{CLIENT}], web: {{}}}}]}}\n"
        )
    }

    /// Returns the entry of the users of the provider in the identity file.
    pub(super) fn caller() -> String {
        format!(
            "- {{name: people, oidc: {{issuer: {NAME}, claims: {{sub: id1}}}}, agents: [\"*\"], services: [kubernetes, graph]}}\n"
        )
    }

    /// Writes the kubeconfig `oidc.kubeconfig`, with which kubectl runs `kas login`.
    pub(super) async fn write_kubeconfig(&self, directory: &Path, server: &str) -> anyhow::Result<()> {
        let file = directory.join("oidc.kubeconfig");
        // kas overwrites no kubeconfig.
        let _ = std::fs::remove_file(&file);
        let mut kas = Command::new(find("kas", None)?);
        kas.args(["kubeconfig", "--agent", AGENT, "--exec", NAME, "--server", server]);
        kas.args(["--login-arg=--browser", "--login-arg=--redirect-uri"]);
        kas.arg(format!("--login-arg={REDIRECT}"));
        kas.arg("--config").arg(directory.join("kas.yaml"));
        kas.arg("--certificate-authority").arg(directory.join("kas.crt"));
        let output = kas.arg("--output").arg(file).output().await.context("kas cannot be started")?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }

    /// Runs `kas login` as kubectl does, logs in as a person in a browser does, and returns the token.
    pub(super) async fn log_in(&self, directory: &Path) -> anyhow::Result<String> {
        let mut kas = Command::new(find("kas", None)?);
        kas.args([
            "login",
            "--issuer",
            &self.url,
            "--client-id",
            CLIENT,
            "--browser",
            "--redirect-uri",
            REDIRECT,
        ]);
        kas.env("KUBERNETES_EXEC_INFO", EXEC_INFO).env("XDG_CACHE_HOME", directory.join("cache"));
        kas.env("BROWSER", "true").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut kas = kas.kill_on_drop(true).spawn().context("kas cannot be started")?;
        let mut lines = BufReader::new(kas.stderr.take().context("standard error is piped")?).lines();
        let login = async {
            let mut last = String::new();
            while let Some(line) = lines.next_line().await? {
                if line.starts_with("http") {
                    self.use_browser(&line).await?;
                    break;
                }
                last = line;
            }
            let output = kas.wait_with_output().await?;
            ensure!(output.status.success(), "kas login: {last}");
            let credential: Value = serde_json::from_slice(&output.stdout)?;
            credential["status"]["token"].as_str().map(str::to_owned).context("kas login printed no token")
        };
        timeout(START, login).await.context("kas login did not end in time")?
    }

    /// Follows the redirects from the page that `kas login` prints to its own page.
    async fn use_browser(&self, page: &str) -> anyhow::Result<()> {
        let (_, headers, _) = request(page, None).await?;
        let form = location(&headers, page)?;
        let (_, id) = form.split_once("authRequestID=").context("the provider has no form for the login")?;
        let body = format!("username={USER}&password={PASSWORD}&id={id}");
        let mut url = format!("{}login/username", self.url);
        let mut response = request(&url, Some(body)).await?;
        for _ in 0..MAX_REDIRECTS {
            let (status, headers, text) = response;
            if !status.is_redirection() {
                ensure!(status.is_success() && text.contains("You are logged in"), "{url}: {status} {text}");
                return Ok(());
            }
            url = location(&headers, &url)?;
            response = request(&url, None).await?;
        }
        anyhow::bail!("the login has more than {MAX_REDIRECTS} redirects")
    }
}

/// The information that kubectl passes to its plugin: a person may log in.
const EXEC_INFO: &str =
    r#"{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","spec":{"interactive":true}}"#;

/// Sends a GET request, or a POST request with a form.
async fn request(url: &str, form: Option<String>) -> anyhow::Result<(StatusCode, HeaderMap, String)> {
    let url: Uri = url.parse()?;
    let (scheme, authority) = (url.scheme_str().context("no scheme")?, url.authority().context("no host")?);
    let tls = Arc::new(ClientTls::new(ClientTlsConfig::default())?);
    let server = Upstream::new(
        format!("{scheme}://{authority}").parse()?,
        UpstreamConfig { tls, ..UpstreamConfig::default() },
    );
    let path = url.path_and_query().map_or("/", |path| path.as_str());
    let request = match form {
        None => Request::get(path).body(Body::empty())?,
        Some(form) => {
            let request = Request::post(path).header(CONTENT_TYPE, "application/x-www-form-urlencoded");
            request.body(Body::from(form))?
        }
    };
    let response = timeout(START, server.send(request)).await??;
    let (head, body) = response.into_parts();
    let body = timeout(START, body.collect()).await??.to_bytes();
    Ok((head.status, head.headers, String::from_utf8_lossy(&body).into_owned()))
}

/// Returns the URL to which a response redirects.
fn location(headers: &HeaderMap, from: &str) -> anyhow::Result<String> {
    let location = headers.get(LOCATION).context("no redirect")?.to_str()?;
    match location.strip_prefix('/') {
        None => Ok(location.to_owned()),
        Some(path) => {
            let from: Uri = from.parse()?;
            Ok(format!("http://{}/{path}", from.authority().context("no host")?))
        }
    }
}

/// Returns the folder of the programs, for `PATH`.
pub(super) fn programs() -> anyhow::Result<PathBuf> {
    Ok(find("kas", None)?.parent().context("the program is in a folder")?.to_owned())
}
