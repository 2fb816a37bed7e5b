//! What the flags about Prometheus come to: a server for each name.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    path::PathBuf,
    sync::Arc,
};

use anyhow::Context as _;
use proto::ServiceName;

use crate::{
    cli::{Named, Run},
    cluster::{Content, CredentialFile},
    handlers::prometheus::Prometheus,
    upstream::{Endpoint, Pem, Scheme, Settings, Tls, TlsOptions},
};

const URL: &str = "--prometheus-url";
const CA: &str = "--prometheus-ca-cert-file";
const TOKEN: &str = "--prometheus-token-file";
const PASSWORD: &str = "--prometheus-basic-auth-file";
const DISCOVERY: &str = "--prometheus-discovery";

/// A hello has room for 32 services (`proto::Hello`), of which one is Kubernetes.
const MOST: usize = 31;

/// The servers that flags name, by service. Reads every file that is named; it blocks.
pub(crate) fn servers(run: &Run) -> anyhow::Result<BTreeMap<ServiceName, Prometheus>> {
    let urls = by_service(URL, &run.prometheus_url)?;
    let mut authorities = by_service(CA, &run.prometheus_ca_cert_file)?;
    let mut tokens = by_service(TOKEN, &run.prometheus_token_file)?;
    let mut passwords = by_service(PASSWORD, &run.prometheus_basic_auth_file)?;
    if run.prometheus_discovery.is_some()
        && urls.keys().any(|service| service.as_str() == ServiceName::PROMETHEUS)
    {
        anyhow::bail!(
            "{DISCOVERY} and {URL} without a name are both for the service prometheus: drop one of them"
        );
    }
    if urls.len() + usize::from(run.prometheus_discovery.is_some()) > MOST {
        anyhow::bail!("{URL}: agentk serves at most {MOST} of them");
    }

    let mut servers = BTreeMap::new();
    for (service, url) in urls {
        let tls = tls(&url, authorities.remove(&service))?;
        let settings = Settings { tls: Arc::new(tls), ..Settings::default() };
        let credential = credential(tokens.remove(&service), passwords.remove(&service))?;
        if credential.is_some() && url.scheme() == Scheme::Http {
            tracing::warn!(%service, %url, "the credential for Prometheus is sent without TLS");
        }
        servers.insert(service, Prometheus::new(url, settings, credential));
    }
    for (flag, rest) in [(CA, authorities), (TOKEN, tokens), (PASSWORD, passwords)] {
        if let Some(service) = rest.keys().next() {
            anyhow::bail!("{flag}: there is no {URL} for the service {service}");
        }
    }

    Ok(servers)
}

fn by_service<T: Clone>(flag: &str, values: &[Named<T>]) -> anyhow::Result<BTreeMap<ServiceName, T>> {
    let mut found = BTreeMap::new();
    for named in values {
        match found.entry(named.service()) {
            Entry::Vacant(entry) => entry.insert(named.value.clone()),
            Entry::Occupied(entry) => anyhow::bail!("{flag}: there are two for the service {}", entry.key()),
        };
    }

    Ok(found)
}

fn tls(url: &Endpoint, authority: Option<PathBuf>) -> anyhow::Result<Tls> {
    let ca = authority.map(Pem::File);
    Ok(match url.scheme() {
        // Without TLS, a machine without root certificates will do.
        Scheme::Http => Tls::system(),
        Scheme::Https => Tls::new(TlsOptions { ca, ..TlsOptions::default() }).context(CA)?,
    })
}

fn credential(token: Option<PathBuf>, password: Option<PathBuf>) -> anyhow::Result<Option<CredentialFile>> {
    match (token, password) {
        (Some(_), Some(_)) => {
            anyhow::bail!("{TOKEN} and {PASSWORD} are for the same {URL}: drop one of them")
        }
        (Some(file), None) => Ok(Some(CredentialFile::open(file, Content::Token).context(TOKEN)?)),
        (None, Some(file)) => Ok(Some(CredentialFile::open(file, Content::Password).context(PASSWORD)?)),
        (None, None) => Ok(None),
    }
}
