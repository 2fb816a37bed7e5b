//! Requests through the tunnel, and checks of their responses.

use std::{io::Write as _, sync::Arc, time::Duration};

use agentk_core::upstream::{ClientTls, ClientTlsConfig, Pem, ResponseBody, Upstream, UpstreamConfig};
use anyhow::{Context as _, bail, ensure};
use http::{Method, Request, Response, header::AUTHORIZATION};
use http_body_util::BodyExt as _;
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};
use tunnel::Body;

use super::{
    RunningDemo,
    oidc::{self, DemoIssuer},
};
use crate::installation::stack::AGENT;

/// A caller that checks responses of kas.
pub(super) struct SmokeTest<'a> {
    demo: &'a RunningDemo,
    kas: Upstream,
    token: String,
    prometheus: bool,
}

/// The timeout of one response.
const TIMEOUT: Duration = Duration::from_secs(20);

impl<'a> SmokeTest<'a> {
    pub(super) fn new(demo: &'a RunningDemo) -> anyhow::Result<Self> {
        let ca = Some(Pem::File(demo.directory.join("kas.crt")));
        let tls = ClientTls::new(ClientTlsConfig { ca, ..ClientTlsConfig::default() })?;
        let settings = UpstreamConfig { tls: Arc::new(tls), ..UpstreamConfig::default() };
        let kas = Upstream::new(format!("https://{}", demo.kas.public).parse()?, settings);
        Ok(Self { demo, kas, token: demo.caller_token.clone(), prometheus: demo.prometheus })
    }

    /// Waits until a request reaches each agent.
    pub(super) async fn wait_for_agents(&self, within: Duration) -> anyhow::Result<()> {
        let deadline = Instant::now() + within;
        loop {
            let answer = async {
                self.version().await?;
                self.ci_job().await
            };
            match answer.await {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() > deadline => {
                    return Err(
                        error.context("no response came through the tunnel; see agentk.log and kas.log")
                    );
                }
                Err(_) => sleep(Duration::from_millis(200)).await,
            }
        }
    }

    /// Returns the version and the deployments of the cluster as a line for the user.
    pub(super) async fn first_answer(&self) -> anyhow::Result<String> {
        let version = self.json(Method::GET, "kubernetes/version", "").await?;
        let deployments = self.json(Method::GET, "kubernetes/apis/apps/v1/deployments", "").await?;
        let names = deployments["items"].as_array().into_iter().flatten().map(|item| {
            format!("{}/{}", text(&item["metadata"]["namespace"]), text(&item["metadata"]["name"]))
        });
        let names = names.collect::<Vec<_>>().join(", ");
        let names = if names.is_empty() { "none yet".to_owned() } else { names };
        Ok(format!("Kubernetes {}; deployments: {names}", text(&version["gitVersion"])))
    }

    /// Runs every check, prints a line for each, and returns how many failed.
    pub(super) async fn run(&self) -> usize {
        let mut failed = 0;
        let mut report = |name: &str, result: anyhow::Result<()>| {
            let line = match &result {
                Ok(()) => format!("ok      {name}"),
                Err(error) => format!("FAILED  {name}: {error:#}"),
            };
            failed += usize::from(result.is_err());
            // If standard output is closed, only the exit code reports the failure.
            let _ = writeln!(std::io::stdout(), "{line}");
        };
        report("the cluster's version", self.version().await);
        report("a list of deployments", self.deployments().await);
        report("a watch delivers at once", self.watch().await);
        report("an object is created, read and deleted", self.config_map().await);
        report("a GitLab CI credential works at /k8s-proxy", self.gitlab().await);
        report("a CI job of GitLab uses its agent, and an unknown one is refused", self.gitlab_job().await);
        match &self.demo.issuer {
            Some(issuer) => {
                report("a person logs in with OIDC and `kas login`", self.oidc_login(issuer).await)
            }
            None => {
                let why = format!("target/{} is not built (make tools)", oidc::PROGRAM);
                let _ = writeln!(std::io::stdout(), "skipped a login with OIDC: {why}");
                testing::skip::record("a login with OIDC", &why);
            }
        }
        report("an unknown agent is a Status that says what exists", self.unknown_agent().await);
        report("a wrong token is refused", self.wrong_token().await);
        if self.prometheus {
            report("a PromQL query", self.promql().await);
            report("an error of Prometheus arrives as it is", self.promql_error().await);
        }
        failed
    }

    async fn version(&self) -> anyhow::Result<()> {
        let version = self.json(Method::GET, "kubernetes/version", "").await?;
        ensure!(version["gitVersion"].is_string(), "{version}");
        Ok(())
    }

    async fn deployments(&self) -> anyhow::Result<()> {
        let list = self.json(Method::GET, "kubernetes/apis/apps/v1/deployments?limit=500", "").await?;
        ensure!(list["kind"] == "DeploymentList", "{list}");
        Ok(())
    }

    async fn watch(&self) -> anyhow::Result<()> {
        let path = "kubernetes/api/v1/namespaces?watch=true&timeoutSeconds=60";
        let mut body = self.send(Method::GET, &self.agent_path(path), "", &self.token).await?.into_body();
        // The first event arrives while the watch is open, so the body is not buffered.
        let frame = timeout(TIMEOUT, body.frame()).await?.context("the watch ended")??;
        let data = frame.into_data().ok().context("no data")?;
        ensure!(data.starts_with(b"{"), "{data:?}");
        Ok(())
    }

    async fn config_map(&self) -> anyhow::Result<()> {
        let list = "kubernetes/api/v1/namespaces/default/configmaps";
        let one = format!("{list}/kas-smoke");
        let _ = self.json(Method::DELETE, &one, "").await;
        let object =
            r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"kas-smoke"},"data":{"a":"b"}}"#;
        self.json(Method::POST, list, object).await?;
        let read = self.json(Method::GET, &one, "").await?;
        self.json(Method::DELETE, &one, "").await?;
        ensure!(read["data"]["a"] == "b", "{read}");
        Ok(())
    }

    async fn gitlab(&self) -> anyhow::Result<()> {
        let token = format!("ci:1:{}", self.token);
        let answer = self.send(Method::GET, "/k8s-proxy/version", "", &token).await?;
        ensure!(answer.status().is_success(), "{}", answer.status());
        Ok(())
    }

    async fn ci_job(&self) -> anyhow::Result<()> {
        let credential = self.demo.gitlab.job_credential();
        let answer = self.send(Method::GET, "/k8s-proxy/version", "", &credential).await?;
        ensure!(answer.status().is_success(), "{}", answer.status());
        Ok(())
    }

    async fn gitlab_job(&self) -> anyhow::Result<()> {
        self.ci_job().await?;
        let other = self.demo.gitlab.job_credential() + "0";
        let answer = self.send(Method::GET, "/k8s-proxy/version", "", &other).await?;
        ensure!(answer.status() == 401, "{}", answer.status());
        Ok(())
    }

    async fn oidc_login(&self, issuer: &DemoIssuer) -> anyhow::Result<()> {
        let token = issuer.log_in(&self.demo.directory).await?;
        let path = self.agent_path("kubernetes/version");
        let answer = self.send(Method::GET, &path, "", &token).await?;
        ensure!(answer.status().is_success(), "{}", answer.status());
        Ok(())
    }

    async fn unknown_agent(&self) -> anyhow::Result<()> {
        let path = "/agents/nobody/kubernetes/version";
        let answer = self.send(Method::GET, path, "", &self.token).await?;
        ensure!(answer.status() == 404, "{}", answer.status());
        let status: Value = serde_json::from_slice(&answer.into_body().collect().await?.to_bytes())?;
        let message = text(&status["message"]);
        ensure!(status["kind"] == "Status" && message.contains("demo (1)"), "{status}");
        Ok(())
    }

    async fn wrong_token(&self) -> anyhow::Result<()> {
        let answer = self.send(Method::GET, &self.agent_path("kubernetes/version"), "", "wrong").await?;
        ensure!(answer.status() == 401, "{}", answer.status());
        Ok(())
    }

    async fn promql(&self) -> anyhow::Result<()> {
        let answer = self.json(Method::GET, "prometheus/api/v1/query?query=1%2B1", "").await?;
        ensure!(answer["data"]["result"][1] == "2", "{answer}");
        Ok(())
    }

    async fn promql_error(&self) -> anyhow::Result<()> {
        let path = self.agent_path("prometheus/api/v1/query?query=%7B");
        let answer = self.send(Method::GET, &path, "", &self.token).await?;
        ensure!(
            answer.status().is_client_error() && !answer.headers().contains_key("kas-error"),
            "{answer:?}"
        );
        let envelope: Value = serde_json::from_slice(&answer.into_body().collect().await?.to_bytes())?;
        ensure!(envelope["status"] == "error" && envelope["errorType"].is_string(), "{envelope}");
        Ok(())
    }

    fn agent_path(&self, path: &str) -> String {
        format!("/agents/{AGENT}/{path}")
    }

    async fn json(&self, method: Method, path: &str, body: &'static str) -> anyhow::Result<Value> {
        let answer = self.send(method, &self.agent_path(path), body, &self.token).await?;
        let status = answer.status();
        let bytes = timeout(TIMEOUT, answer.into_body().collect()).await??.to_bytes();
        if !status.is_success() {
            bail!("{status}: {}", String::from_utf8_lossy(&bytes));
        }
        Ok(serde_json::from_slice(&bytes)?)
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: &'static str,
        token: &str,
    ) -> anyhow::Result<Response<ResponseBody>> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(AUTHORIZATION, format!("Bearer {token}"))
            .header("content-type", "application/json")
            .body(Body::from(body))?;
        Ok(timeout(TIMEOUT, self.kas.send(request)).await??)
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
