//! The feature: the service `alerts`, the section `alerts`, and the sources that flags name.

use std::sync::Arc;

use proto::ServiceName;

use super::{Alerts, AlertsHandler, AlertsMetrics};
use crate::{
    app::alert_sources,
    cli::RunOptions,
    feature::{Feature, FeatureContext, FeatureDefinition, Guard, Section, SectionError},
    leader::LedFeature,
};

pub(crate) const DEFINITION: FeatureDefinition = FeatureDefinition {
    services: &[ServiceName::ALERTS],
    is_enabled: |options| options.hubble_address.is_some() || options.policy_engine_alerts,
    build,
};

fn build(options: &RunOptions, context: &mut FeatureContext<'_>) -> anyhow::Result<Feature> {
    let Some(sources) = alert_sources(options)? else { return Ok(Feature::default()) };
    let metrics = AlertsMetrics::register(context.registry);
    let own = context.own_cluster(ServiceName::ALERTS);
    let leader = context.lead(LedFeature::Alerts, own);
    // Without a Lease, each pod reports, and kas leaves out what another pod has reported.
    let leads = move || leader.is_leading_or_unnamed();
    let (kubernetes, restrictions) = (context.kubernetes.clone(), context.restrictions.clone());
    let alerts = Alerts::new(sources, kubernetes, restrictions, leads, context.events.clone(), metrics);
    AlertsMetrics::register_open(context.registry, &alerts);
    let section = section(Arc::clone(&alerts));
    let (worker, stopping) = (Arc::clone(&alerts), context.stopping.clone());
    Ok(Feature::default()
        .with_handler(ServiceName::ALERTS, Guard::Handler, AlertsHandler(alerts))
        .with_section(section)
        .with_work(async move {
            stopping.run_until_cancelled(worker.run()).await;
        }))
}

/// Returns what the configuration of the agent sets.
pub(super) fn section(alerts: Arc<Alerts>) -> Section {
    let error = SectionError::default();
    Box::new(move |update| {
        error.set(update.keys.alerts_error.as_ref(), "the alerts do not use their configuration");
        alerts.set_section(update.keys.alerts.clone());
        Vec::new()
    })
}
