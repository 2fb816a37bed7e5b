//! The feature: the services `provision` and `environments`, and the template of environments, which comes with the configuration.

use agentk_core::feature::{Feature, FeatureContext, FeatureDefinition, FeatureOptions, Guard};
use proto::ServiceName;

use super::{EnvironmentsHandler, ProvisionMetrics, ProvisionService};

/// The feature, as agentk builds it.
pub const DEFINITION: FeatureDefinition = FeatureDefinition {
    services: &[ServiceName::PROVISION],
    writes: true,
    lease: None,
    // Without a configuration there is no template.
    flags: |command| command,
    is_enabled: |options| options.is_configurable,
    build,
    check: None,
};

fn build(_: &FeatureOptions<'_>, context: &mut FeatureContext<'_>) -> anyhow::Result<Feature> {
    let cluster = context.restricted_cluster(ServiceName::PROVISION);
    let metrics = ProvisionMetrics::register(context.registry);
    let provision = ProvisionService::new(cluster, context.restrictions.clone(), metrics);
    let environments = EnvironmentsHandler(provision.clone());
    Ok(Feature::default()
        .with_handler(ServiceName::PROVISION, Guard::Handler, provision.clone())
        .with_handler(ServiceName::ENVIRONMENTS, Guard::Handler, environments)
        .with_section(move |update| {
            let settings = update.provision.cloned();
            settings.and_then(|settings| provision.set(settings)).into_iter().collect()
        }))
}
