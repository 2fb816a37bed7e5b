//! The feature: the service `alerts`, the section `alerts`, and the sources that flags name.

use std::sync::Arc;

use agentk_core::{
    feature::{Feature, FeatureContext, FeatureDefinition, FeatureOptions, Guard, SectionError},
    upstream::Pem,
};
use clap::Args as _;
use proto::ServiceName;

use super::{Alerts, AlertsHandler, AlertsMetrics, LEASE, check, options::AlertsOptions};

/// The feature, as agentk builds it.
pub const DEFINITION: FeatureDefinition = FeatureDefinition {
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
    let Some(sources) = options.sources()? else { return Ok(Feature::default()) };
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
