//! The feature: the service `audit`, and the webhook that fills its ring.

use std::sync::Arc;

use agentk_core::feature::{Feature, FeatureContext, FeatureDefinition, FeatureOptions, Guard, Work};
use clap::Args as _;
use proto::ServiceName;

use super::{
    AuditHandler, check,
    health::AuditHealth,
    webhook::{AuditOptions, AuditWebhook},
};

/// The feature, as agentk builds it.
pub const DEFINITION: FeatureDefinition = FeatureDefinition {
    services: &[ServiceName::AUDIT],
    writes: false,
    lease: None,
    flags: AuditOptions::augment_args,
    is_enabled: |options| options.flags::<AuditOptions>().audit_listen.is_some(),
    build,
    check: Some(check::check),
};

fn build(options: &FeatureOptions<'_>, context: &mut FeatureContext<'_>) -> anyhow::Result<Feature> {
    let FeatureContext { kubernetes, restrictions, health, registry, followers, stopping, .. } = context;
    let audit_health = Arc::<AuditHealth>::default();
    let Some(webhook) = AuditWebhook::build(options.flags(), &audit_health, registry, followers)? else {
        return Ok(Feature::default());
    };
    health.features.add(move || audit_health.problem());
    let scope = restrictions.scope.clone();
    let handler = AuditHandler::new(webhook.view(), scope, kubernetes.clone(), stopping.clone());
    let stopping = stopping.clone();
    let start = move || {
        let webhook = webhook.bind()?;
        let work: Work = Box::pin(webhook.run(stopping));
        Ok(work)
    };
    Ok(Feature::default().with_handler(ServiceName::AUDIT, Guard::Policy, handler).with_start(start))
}
