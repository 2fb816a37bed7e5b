//! The step of `agentk check` for the webhook.

use std::net::SocketAddr;

use agentk_core::{
    ListenTls,
    check_report::CheckReport,
    feature::{CheckContext, FeatureCheck, FeatureOptions},
};
use futures_util::{FutureExt as _, future::LocalBoxFuture};

use super::webhook::audit_listener;

/// The address and the certificates for the audit events of the API server, which can be used.
struct AuditCheck {
    address: SocketAddr,
    tls: ListenTls,
}

/// Returns the step, or `None` without an address. It reads the certificates, which blocks.
pub(super) fn check(
    options: &FeatureOptions<'_>,
    _: &CheckContext,
) -> anyhow::Result<Option<Box<dyn FeatureCheck>>> {
    let listener = audit_listener(&options.flags())?;
    Ok(listener.map(|(address, tls)| Box::new(AuditCheck { address, tls }) as Box<dyn FeatureCheck>))
}

impl FeatureCheck for AuditCheck {
    fn run<'a>(&'a self, _: bool, report: &'a mut CheckReport<'_>) -> LocalBoxFuture<'a, ()> {
        async move {
            report.set_subject("audit");
            let Self { address, tls } = self;
            let files: Vec<_> = tls.files().iter().map(|file| file.display().to_string()).collect();
            let what = format!(
                "the API server posts events to {address}, path /audit, with a client certificate of the authority; the certificate \
                 matches its key; read {}",
                files.join(", ")
            );
            report.ok("--audit-listen", what);
        }
        .boxed_local()
    }
}
