//! Sends a message to an agent and prints its answer as it arrives: `cargo run --example ask -- URL
//! WORDS…`.

use std::{
    env,
    io::{self, Write},
};

use faultline_client::{Client, Ended, Ending, Error, text};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = env::args().skip(1);
    let url = args.next().ok_or("usage: ask URL WORDS…")?;
    let words: Vec<_> = args.collect();

    let mut builder = Client::builder(&url);
    if let Ok(token) = env::var("TOKEN") {
        builder = builder.bearer(&token);
    }
    let agent = builder.connect().await?;
    let name = agent.card().map(|card| card.name.clone()).unwrap_or_default();
    eprintln!("{name} by {}", agent.binding());

    let mut run = agent.follow(text(words.join(" "))).await?;
    while let Some(event) = run.next().await {
        print!("{}", event?.text());
        io::stdout().flush()?;
    }
    println!();
    match Ended::of(run.task_so_far()) {
        None => Ok(()),
        Some(ended) if ended.how == Ending::InputRequired => {
            eprintln!("The agent asks: {}", ended.failure.public_message);
            Ok(())
        }
        Some(ended) => Err(Error::from(ended).into()),
    }
}
