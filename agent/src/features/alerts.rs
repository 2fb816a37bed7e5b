//! The feature: the service `alerts`, the section `alerts`, and the sources that flags name.

mod check;
mod options;

use std::sync::Arc;

use anyhow::Context as _;
use clap::Args as _;
use proto::ServiceName;
use rustls::pki_types::ServerName;

use self::options::AlertsOptions;
use super::{Feature, FeatureContext, FeatureDefinition, FeatureOptions, Guard, SectionError};
use crate::{
    services::alerts::{AlertSources, Alerts, AlertsHandler, AlertsMetrics, HubbleRelay, LEASE},
    upstream::{ClientTls, ClientTlsConfig, Pem, Scheme},
};

pub(crate) const DEFINITION: FeatureDefinition = FeatureDefinition {
    services: &[ServiceName::ALERTS],
    writes: false,
    lease: Some(LEASE),
    flags: AlertsOptions::augment_args,
    is_enabled: |options| {
        let options: AlertsOptions = options.flags();
        options.hubble_address.is_some() || options.policy_engine_alerts
    },
    build,
    check: Some(check::check),
};

fn build(options: &FeatureOptions<'_>, context: &mut FeatureContext<'_>) -> anyhow::Result<Feature> {
    let options: AlertsOptions = options.flags();
    let ca = options.hubble_ca_cert_file.clone();
    let Some(sources) = alert_sources(options)? else { return Ok(Feature::default()) };
    if let Some(path) = ca {
        let pem = Pem::File(path.clone());
        context.followers.check("--hubble-ca-cert-file", vec![path], move || pem.check_authorities());
    }
    let metrics = AlertsMetrics::register(context.registry);
    let own = context.own_cluster(ServiceName::ALERTS);
    let leader = context.lead(own);
    // Without a Lease, each pod reports, and kas leaves out what another pod has reported.
    let leads = move || leader.is_leading_or_unnamed();
    let (kubernetes, restrictions) = (context.kubernetes.clone(), context.restrictions.clone());
    let alerts = Alerts::new(sources, kubernetes, restrictions, leads, context.events.clone(), metrics);
    AlertsMetrics::register_open(context.registry, &alerts);
    let (configured, error) = (Arc::clone(&alerts), SectionError::default());
    let (worker, stopping) = (Arc::clone(&alerts), context.stopping.clone());
    Ok(Feature::default()
        .with_handler(ServiceName::ALERTS, Guard::Handler, AlertsHandler(alerts))
        .with_section(move |update| {
            error.set(update.keys.alerts_error.as_ref(), "the alerts do not use their configuration");
            configured.set_section(update.keys.alerts.clone());
            Vec::new()
        })
        .with_work(async move {
            stopping.run_until_cancelled(worker.run()).await;
        }))
}

/// Returns the sources, or `None` if no flag names one. It reads every file that is named, which blocks.
fn alert_sources(options: AlertsOptions) -> anyhow::Result<Option<AlertSources>> {
    let hubble = options.hubble_address.map(|url| {
        anyhow::ensure!(
            url.base_path().is_empty(),
            "--hubble-address {url} has a path, which gRPC does not support"
        );
        let name = options.hubble_tls_server_name.map(ServerName::try_from).transpose();
        let server_name = name.context("--hubble-tls-server-name is neither a DNS name nor an IP address")?;
        let certificate = options.hubble_client_cert_file.zip(options.hubble_client_key_file);
        let config = ClientTlsConfig {
            ca: options.hubble_ca_cert_file.map(Pem::File),
            identity: certificate.map(|(chain, key)| (Pem::File(chain), Pem::File(key))),
            server_name,
            http2: true,
            ..ClientTlsConfig::default()
        };
        let tls = match url.scheme() {
            Scheme::Http
                if config.ca.is_some() || config.identity.is_some() || config.server_name.is_some() =>
            {
                anyhow::bail!(
                    "--hubble-address {url} has no TLS, for which there are certificates: write https://"
                )
            }
            // Root certificates are needed for TLS only.
            Scheme::Http => ClientTls::system(),
            Scheme::Https => ClientTls::new(config).context("the certificates for --hubble-address")?,
        };
        Ok(HubbleRelay::new(url, Arc::new(tls)))
    });
    let sources = AlertSources { hubble: hubble.transpose()?, policy_engines: options.policy_engine_alerts };
    Ok((sources.hubble.is_some() || sources.policy_engines).then_some(sources))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;

    fn sources(flags: &str) -> Result<Option<AlertSources>, String> {
        let line = format!("agentk --kas-address ws://kas {flags}");
        let options = Cli::from_arguments(line.split_whitespace()).unwrap().run.unwrap();
        alert_sources(options.features.get()).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn alerts_are_off_without_a_source() {
        assert!(sources("").unwrap().is_none());
        assert!(sources("--policy-engine-alerts").unwrap().unwrap().hubble.is_none());
        assert!(sources("--hubble-address http://hubble-relay:80").unwrap().unwrap().hubble.is_some());
    }

    #[test]
    fn address_and_certificates_have_to_agree() {
        for (flags, expected) in [
            ("--hubble-address http://hubble-relay/prefix", "has a path, which gRPC does not support"),
            ("--hubble-address http://hubble-relay --hubble-ca-cert-file ca.crt", "write https://"),
            ("--hubble-address http://hubble-relay --hubble-tls-server-name ui", "write https://"),
            (
                "--hubble-address https://hubble-relay --hubble-tls-server-name a/b",
                "--hubble-tls-server-name is neither",
            ),
            ("--hubble-address https://hubble-relay --hubble-ca-cert-file absent", "cannot read absent"),
        ] {
            let error = sources(flags).unwrap_err();
            assert!(error.contains(expected), "{flags}: {error}");
        }
    }
}
