//! One process as those see it who run it: its numbers, scraped or sent, and its probes. All
//! long-running commands have it around them.

use std::{net::SocketAddr, time::Duration};

use anyhow::Context;
use faultline_chassis::{
    Drain, Metrics,
    admin::{Admin, Probes},
    config::Environment,
    metrics::export::{self, Exporting, Options},
};
use tokio_util::task::AbortOnDropHandle;

use crate::exit::CannotStart;

/// The flag that all of them have.
#[derive(Debug, clap::Args)]
pub(crate) struct Flag {
    /// Where probes (/livez, /readyz, /startupz) and /metrics are served, to whoever reaches it;
    /// port 0 takes any free one [default: nowhere].
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<SocketAddr>,
}

/// What there is to watch, and where.
pub(crate) struct Watch {
    pub(crate) metrics: Metrics,
    admin: Option<SocketAddr>,
    otlp: Option<Options>,
    /// Of what was asked, what cannot be.
    passed_over: Vec<String>,
    /// How long the service goes on as before after it was told to leave.
    pub(crate) delay: Duration,
}

impl Watch {
    /// Of the process of this name. `admin` and `endpoint` are what is configured.
    pub(crate) fn new(
        service: &str,
        flag: Flag,
        admin: Option<SocketAddr>,
        endpoint: Option<&str>,
        env: &Environment,
    ) -> Self {
        let mut passed_over = Vec::new();
        let otlp = export::options(env, endpoint, |what| passed_over.push(what));
        let (metrics, admin) = (Metrics::of(service), flag.admin.or(admin));
        Self { metrics, admin, otlp, passed_over, delay: Duration::ZERO }
    }

    /// From now on, and until it is ended.
    pub(crate) async fn start(self, drain: &Drain) -> anyhow::Result<Watched> {
        for what in &self.passed_over {
            tracing::warn!("passed over: {what}");
        }
        let probes = Probes::default();
        let exporting = self.otlp.map(|otlp| export::start(self.metrics.clone(), otlp));
        let exporting = exporting.transpose().context(CannotStart("telemetry"))?;
        let serving = match self.admin {
            Some(address) => {
                let bound = Admin::bind(address, self.metrics, probes.clone()).await;
                let admin = bound.context(CannotStart("admin port"))?;
                tracing::info!(address = %admin.addr(), "probes and numbers are served");
                Some(AbortOnDropHandle::new(tokio::spawn(admin.serve())))
            }
            None => None,
        };
        let leaving = AbortOnDropHandle::new(tokio::spawn({
            let (drain, probes) = (drain.clone(), probes.clone());
            async move {
                drain.signalled().await;
                probes.leave();
            }
        }));
        Ok(Watched { probes, exporting, _tasks: (serving, leaving) })
    }
}

/// A process that is being watched.
pub(crate) struct Watched {
    pub(crate) probes: Probes,
    exporting: Option<Exporting>,
    _tasks: (Option<AbortOnDropHandle<()>>, AbortOnDropHandle<()>),
}

impl Watched {
    /// The last numbers are sent.
    pub(crate) async fn end(self) {
        if let Some(exporting) = self.exporting {
            exporting.flush().await;
        }
    }
}
