//! The server that receives the requests, and the prepared requests.
#![allow(
    rustdoc::broken_intra_doc_links,
    reason = "these comments are help texts, where brackets mean optional"
)]

use std::path::{Path, PathBuf};

use agentk_core::{
    KasAddress, TcpDialer,
    upstream::{ClientTlsConfig, Pem},
};
use anyhow::{Context as _, bail, ensure};
use http::{HeaderName, HeaderValue, Uri};

/// A server and the prepared requests for it.
pub struct LoadTarget {
    name: String,
    dial: TcpDialer,
    requests: Vec<Vec<u8>>,
}

/// The flags that define a target, which all load commands share.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct TargetOptions {
    /// URL to request: http(s)://host[:port]/path; several URLs of one server are requested in random order
    #[arg(value_name = "URL", required = true)]
    pub urls: Vec<String>,
    /// Header to send: "Name: value"; may be repeated
    #[arg(long = "header", short = 'H', value_name = "HEADER", help_heading = "Request")]
    pub headers: Vec<String>,
    /// File that contains a bearer token
    #[arg(long, value_name = "FILE", help_heading = "Request")]
    pub token_file: Option<PathBuf>,
    /// Method of the requests
    #[arg(long, value_name = "METHOD", default_value = "GET", help_heading = "Request")]
    pub method: http::Method,
    /// Certificates (PEM) to trust instead of the system's
    #[arg(long, value_name = "FILE", help_heading = "Request")]
    pub cacert: Option<PathBuf>,
    /// Trust any certificate
    #[arg(long, conflicts_with = "cacert", help_heading = "Request")]
    pub insecure: bool,
}

impl TargetOptions {
    /// Reads the files and prepares the requests, without dialling. Blocks.
    pub fn build(&self) -> anyhow::Result<LoadTarget> {
        let mut uris = self.urls.iter().map(|url| parse(url));
        let first = uris.next().context("there is no URL")??;
        let fields = self.fields()?;
        let mut requests = vec![request(&self.method, &first, &fields)];
        for uri in uris {
            let uri = uri?;
            ensure!(
                (uri.scheme(), uri.authority()) == (first.scheme(), first.authority()),
                "{uri} is of another server than {first}: one run, one server"
            );
            requests.push(request(&self.method, &uri, &fields));
        }
        let authority = first.authority().context("a URL has a host")?;
        let scheme = if first.scheme_str() == Some("https") { "wss" } else { "ws" };
        let address: KasAddress = format!("{scheme}://{authority}").parse()?;
        let ca = self.cacert.clone().map(Pem::File);
        let tls = ClientTlsConfig { ca, insecure: self.insecure, ..ClientTlsConfig::default() };
        Ok(LoadTarget { name: first.to_string(), dial: TcpDialer::new(address, tls)?, requests })
    }

    fn fields(&self) -> anyhow::Result<Vec<(HeaderName, HeaderValue)>> {
        let mut fields = Vec::new();
        for header in &self.headers {
            // The value may be a credential, so the error does not contain it.
            let (name, value) = header.split_once(':').context("write a header like \"Name: value\"")?;
            let name: HeaderName = name.trim().parse().context("write a header like \"Name: value\"")?;
            let value = HeaderValue::from_str(value.trim()).with_context(|| format!("header {name}"))?;
            fields.push((name, value));
        }
        if let Some(file) = &self.token_file {
            let token = read_token(file)?;
            let value = HeaderValue::from_str(&format!("Bearer {token}"));
            let value = value.with_context(|| format!("{} contains no token", file.display()))?;
            fields.push((http::header::AUTHORIZATION, value));
        }
        Ok(fields)
    }
}

impl LoadTarget {
    /// Returns the first URL, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the dialer.
    pub fn dial(&self) -> &TcpDialer {
        &self.dial
    }

    /// Returns the prepared requests, of which there is at least one.
    pub fn requests(&self) -> &[Vec<u8>] {
        &self.requests
    }
}

/// Reads a token from a file, without surrounding white space.
pub fn read_token(file: &Path) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let token = text.trim().to_owned();
    ensure!(!token.is_empty(), "{} is empty", file.display());
    Ok(token)
}

fn parse(url: &str) -> anyhow::Result<Uri> {
    // The URL may contain a password, so the error does not contain it.
    ensure!(!url.contains('@'), "the URL contains a user name or password; use --token-file or --header");
    let uri: Uri = url
        .parse()
        .with_context(|| format!("{url:?} is no URL; write it like https://kas.example.com/path"))?;
    match uri.scheme_str() {
        Some("http" | "https") => Ok(uri),
        _ => bail!("{url:?} starts with neither https:// nor http://"),
    }
}

fn request(method: &http::Method, uri: &Uri, fields: &[(HeaderName, HeaderValue)]) -> Vec<u8> {
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let host = uri.authority().map_or("", |authority| authority.as_str());
    let mut bytes = format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\n").into_bytes();
    for (name, value) in fields {
        bytes.extend_from_slice(name.as_str().as_bytes());
        bytes.extend_from_slice(b": ");
        bytes.extend_from_slice(value.as_bytes());
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(b"\r\n");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(urls: &[&str]) -> TargetOptions {
        TargetOptions { urls: urls.iter().map(ToString::to_string).collect(), ..TargetOptions::default() }
    }

    #[test]
    fn requests_contain_headers_and_token() {
        let directory = tempfile::tempdir().unwrap();
        let token_file = directory.path().join("token");
        std::fs::write(&token_file, "s3cret\n").unwrap();
        let headers = vec!["Accept: text/plain".to_owned()];
        let options = TargetOptions {
            headers,
            token_file: Some(token_file),
            ..options(&["http://kas:8154/agents/a/kubernetes/version?x=y", "http://kas:8154/b"])
        };
        let target = options.build().unwrap();
        let texts: Vec<_> =
            target.requests().iter().map(|request| String::from_utf8_lossy(request).into_owned()).collect();
        let rest = "HTTP/1.1\r\nhost: kas:8154\r\naccept: text/plain\r\nauthorization: Bearer s3cret\r\n\r\n";
        assert_eq!(texts, [format!("GET /agents/a/kubernetes/version?x=y {rest}"), format!("GET /b {rest}")]);
    }

    #[test]
    fn errors_contain_no_secrets() {
        let refused = |options: TargetOptions| format!("{:#}", options.build().err().unwrap());
        assert!(refused(options(&["kas:8154/x"])).contains("is no URL; write it like https://"));
        assert!(refused(options(&["ftp://kas/x"])).contains("neither https:// nor http://"));
        assert!(refused(options(&["http://a/x", "http://b/x"])).contains("one run, one server"));
        let secret = refused(options(&["http://me:hunter2@kas/"]));
        assert!(secret.contains("--token-file") && !secret.contains("hunter2"), "{secret}");
        for header in ["hunter2", "bad name: hunter2", "X: hunter2\nY"] {
            let options = TargetOptions { headers: vec![header.to_owned()], ..options(&["http://kas/"]) };
            let text = refused(options);
            assert!(!text.contains("hunter2"), "{text}");
        }
        let missing =
            TargetOptions { token_file: Some("/nowhere/token".into()), ..options(&["http://kas/"]) };
        assert!(refused(missing).starts_with("cannot read /nowhere/token"));
    }
}
