//! The steps of `agentk check` for the sources of alerts.

use agentk_core::{
    check_report::{CheckReport, REVIEW_HINT, StepError, failed},
    check_rights::{FeatureRights, NeededRight, RightsCheck},
    feature::{CheckContext, FeatureCheck, FeatureOptions},
    services::KubernetesService,
};
use futures_util::{FutureExt as _, future::LocalBoxFuture};
use proto::ServiceName;

use super::{AlertSources, options::AlertsOptions};

/// The permissions for the alerts of policy engines.
const EVENTS: NeededRight = NeededRight::to_watch("", "events");

/// The rights of the pod that reports, and those for the policies whose names the drops of Hubble have.
const OWN: &[NeededRight] =
    &[NeededRight { group: "coordination.k8s.io", resource: "leases", verbs: &["get", "create", "update"] }];
const POLICIES: NeededRight = NeededRight::to_watch("cilium.io", "ciliumnetworkpolicies");
const CLUSTER_POLICIES: NeededRight = NeededRight::to_watch("cilium.io", "ciliumclusterwidenetworkpolicies");
const EFFECT: &str = "without the Lease each pod reports, without the policies drops have no cause, and without Events there are no violations; see alerts of \
     the chart";

/// The subjects of the steps.
struct AlertsCheck {
    rights: RightsCheck,
    sources: AlertSources,
    kubernetes: KubernetesService,
    /// True if flags restrict agentk to namespaces.
    is_scoped: bool,
}

/// Returns the steps, or `None` if no flag names a source. It reads every file that is named, which blocks.
pub(super) fn check(
    options: &FeatureOptions<'_>,
    context: &CheckContext,
) -> anyhow::Result<Option<Box<dyn FeatureCheck>>> {
    let Some(sources) = AlertsOptions::sources(options.flags())? else { return Ok(None) };
    let (kubernetes, is_scoped) = (context.kubernetes.clone(), context.scope.is_some());
    let rights = RightsCheck::new(context, rights(&sources, is_scoped));
    Ok(Some(Box::new(AlertsCheck { rights, sources, kubernetes, is_scoped })))
}

/// Returns the rights. Those for Events have a step of their own, unless they are in the namespaces of a scope.
fn rights(sources: &AlertSources, is_scoped: bool) -> FeatureRights {
    let (mut everywhere, mut cluster) = (Vec::new(), Vec::new());
    if sources.hubble.is_some() {
        everywhere.push(POLICIES);
        cluster.push(CLUSTER_POLICIES);
    }
    if sources.policy_engines && is_scoped {
        everywhere.push(EVENTS);
    }
    FeatureRights { subject: ServiceName::ALERTS, own: OWN, everywhere, cluster, effect: EFFECT }
}

impl FeatureCheck for AlertsCheck {
    fn run<'a>(&'a self, cluster_answers: bool, report: &'a mut CheckReport<'_>) -> LocalBoxFuture<'a, ()> {
        async move {
            report.set_subject(ServiceName::ALERTS);
            if cluster_answers {
                let result = self.rights.check(report).await;
                report.end(result);
                let result = self.check_events(report).await;
                report.end(result);
            }
            let result = self.check_hubble(report).await;
            report.end(result);
        }
        .boxed_local()
    }
}

impl AlertsCheck {
    /// Checks the rights for the Events of policy engines. With a scope, agentk needs them in its namespaces only.
    async fn check_events(&self, report: &mut CheckReport<'_>) -> Result<(), StepError> {
        if !self.sources.policy_engines || self.is_scoped {
            return Ok(());
        }
        for verb in EVENTS.verbs {
            let allowed = self.kubernetes.may(verb, EVENTS.group, EVENTS.resource).await;
            if !allowed.map_err(failed("Events", REVIEW_HINT))? {
                let what = format!(
                    "agentk may not {verb} events in all namespaces, so that it reports no violations"
                );
                report.warning("Events", what);
                return Ok(());
            }
        }
        report.ok("Events", "agentk may list and watch events in all namespaces");
        Ok(())
    }

    /// Checks that Hubble Relay answers.
    async fn check_hubble(&self, report: &mut CheckReport<'_>) -> Result<(), StepError> {
        let Some(relay) = &self.sources.hubble else { return Ok(()) };
        let hint = "check the scheme, the host and the port of --hubble-address, the --hubble-… files, and that NetworkPolicies allow the \
                    connection";
        let address = relay.check().await.map_err(failed("Hubble Relay", hint))?;
        report.ok("Hubble Relay", format!("{address} answers"));
        Ok(())
    }
}
