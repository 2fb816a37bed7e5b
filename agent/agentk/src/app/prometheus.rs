//! The Prometheus servers that flags configure.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    path::PathBuf,
    sync::Arc,
};

use agentk_core::{
    cluster::{CredentialFile, CredentialKind},
    services::PrometheusService,
    upstream::{ClientTls, ClientTlsConfig, Pem, Scheme, ServerUrl, UpstreamConfig},
};
use anyhow::Context as _;
use proto::ServiceName;

use crate::cli::{NamedValue, RunOptions};

const URL: &str = "--prometheus-url";
const CA: &str = "--prometheus-ca-cert-file";
const TOKEN: &str = "--prometheus-token-file";
const PASSWORD: &str = "--prometheus-basic-auth-file";
const DISCOVERY: &str = "--prometheus-discovery";

/// The most servers: a hello has room for 32 services (`proto::Hello`), of which one is `kubernetes`.
const MAX_SERVERS: usize = 31;

/// Returns the services that flags configure, by name. It reads every file that is named, which blocks.
pub(crate) fn prometheus_services(
    options: &RunOptions,
) -> anyhow::Result<BTreeMap<ServiceName, PrometheusService>> {
    let urls = by_service(URL, &options.prometheus_url)?;
    let mut authorities = by_service(CA, &options.prometheus_ca_cert_file)?;
    let mut tokens = by_service(TOKEN, &options.prometheus_token_file)?;
    let mut passwords = by_service(PASSWORD, &options.prometheus_basic_auth_file)?;
    if options.prometheus_discovery.is_some()
        && urls.keys().any(|service| service.as_str() == ServiceName::PROMETHEUS)
    {
        anyhow::bail!(
            "{DISCOVERY} and {URL} without a name are both for the service prometheus: drop one of them"
        );
    }
    if urls.len() + usize::from(options.prometheus_discovery.is_some()) > MAX_SERVERS {
        anyhow::bail!("{URL}: agentk serves at most {MAX_SERVERS} of them");
    }

    let mut services = BTreeMap::new();
    for (service, url) in urls {
        let tls = tls(&url, authorities.remove(&service))?;
        let config = UpstreamConfig { tls: Arc::new(tls), ..UpstreamConfig::default() };
        let credential = credential(tokens.remove(&service), passwords.remove(&service))?;
        if credential.is_some() && url.scheme() == Scheme::Http {
            tracing::warn!(%service, %url, "the credential of a Prometheus server is sent without TLS");
        }
        services.insert(service, PrometheusService::new(url, config, credential));
    }
    for (flag, rest) in [(CA, authorities), (TOKEN, tokens), (PASSWORD, passwords)] {
        if let Some(service) = rest.keys().next() {
            anyhow::bail!("{flag}: there is no {URL} for the service {service}");
        }
    }

    Ok(services)
}

fn by_service<T: Clone>(flag: &str, values: &[NamedValue<T>]) -> anyhow::Result<BTreeMap<ServiceName, T>> {
    let mut found = BTreeMap::new();
    for named in values {
        match found.entry(named.service()) {
            Entry::Vacant(entry) => entry.insert(named.value.clone()),
            Entry::Occupied(entry) => anyhow::bail!("{flag}: there are two for the service {}", entry.key()),
        };
    }

    Ok(found)
}

fn tls(url: &ServerUrl, authority: Option<PathBuf>) -> anyhow::Result<ClientTls> {
    let ca = authority.map(Pem::File);
    Ok(match url.scheme() {
        // Root certificates are needed for TLS only.
        Scheme::Http => ClientTls::system(),
        Scheme::Https => ClientTls::new(ClientTlsConfig { ca, ..ClientTlsConfig::default() }).context(CA)?,
    })
}

fn credential(token: Option<PathBuf>, password: Option<PathBuf>) -> anyhow::Result<Option<CredentialFile>> {
    match (token, password) {
        (Some(_), Some(_)) => {
            anyhow::bail!("{TOKEN} and {PASSWORD} are for the same {URL}: drop one of them")
        }
        (Some(file), None) => Ok(Some(CredentialFile::open(file, CredentialKind::Token).context(TOKEN)?)),
        (None, Some(file)) => {
            Ok(Some(CredentialFile::open(file, CredentialKind::Password).context(PASSWORD)?))
        }
        (None, None) => Ok(None),
    }
}
