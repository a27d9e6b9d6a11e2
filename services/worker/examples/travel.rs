//! Three agents in one program: `planner` delegates to `billing`, and `billing` to `ledger`. With
//! `OTEL_EXPORTER_OTLP_ENDPOINT` set here and for the mesh, a task of the planner is one trace.

use std::process::ExitCode;

use faultline_worker::{Agent, Context, Error, Offer};
use tracing::Instrument;

struct Planner;

impl Agent for Planner {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        let bill = cx.delegate("billing", cx.text()).await?;
        cx.artifact("plan", format!("a trip to {} for {}", cx.text(), bill.text())).await
    }
}

struct Billing;

impl Agent for Billing {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        let price = cx.delegate("ledger", cx.text()).await?;
        cx.artifact("bill", price.text()).await
    }
}

struct Ledger;

impl Agent for Ledger {
    async fn run(&self, cx: &Context) -> Result<(), Error> {
        // A span of this program becomes a child of the span of the attempt.
        let price = price(&cx.text()).instrument(tracing::info_span!("look up price")).await;
        cx.artifact("price", format!("{price} €")).await
    }
}

async fn price(town: &str) -> usize {
    tracing::info!(town, "looking up the price");
    10 * town.len()
}

#[tokio::main]
async fn main() -> ExitCode {
    faultline_worker::main(|worker| {
        worker
            .offer(Offer::new("planner", Planner).description("Plans a trip"))
            .offer(Offer::new("billing", Billing).description("Says what a trip costs"))
            .offer(Offer::new("ledger", Ledger).description("Knows every price"))
    })
    .await
}
