//! `blkmq devices`: what each device is, and its parameters.

use std::io::Write;

use clap::Args;
use serde::Serialize;

use blkmq_program::{Failure, json};

const EXAMPLES: &str = "\
Examples:
  blkmq devices
  blkmq replay trace --device null,submit_queues=4,hw_queue_depth=64
  blkmq replay trace --device ram,size=1G";

/// Explain each device and its parameters.
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{}", blkmq_program::EXIT_CODES))]
pub(crate) struct Devices {
    /// Print one JSON object instead of words.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Device {
    name: &'static str,
    about: &'static str,
    /// What this system offers the device. `None` if the device needs nothing of it.
    here: Option<String>,
    parameters: Vec<Parameter>,
}

#[derive(Debug, Serialize)]
struct Parameter {
    name: &'static str,
    /// What a value looks like, with its unit and range.
    accepts: String,
    /// The default, as a spec writes it. `None` if there is no default.
    default: Option<&'static str>,
    about: &'static str,
}

fn devices() -> Vec<Device> {
    let parameter = |parameter: &blkmq::driver::spec::Parameter| Parameter {
        name: parameter.name,
        accepts: parameter.accepts.to_string(),
        default: Some(parameter.default).filter(|default| !default.is_empty()),
        about: parameter.about,
    };
    let device = |device: &blkmq::driver::spec::DeviceDescription| Device {
        name: device.name,
        about: device.about,
        here: device.offers(),
        parameters: device.parameters.iter().map(parameter).collect(),
    };
    blkmq_drivers::devices().iter().map(device).collect()
}

impl Devices {
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<(), Failure> {
        let devices = devices();
        if self.json {
            return json::print(&devices, out);
        }
        writeln!(
            out,
            "A spec names a device and then its parameters: null,hw_queue_depth=1,irqmode=2. A file may be named by its path\n\
             alone: disk.img, file:disk.img and file,path=disk.img are one device. A comma in a path is written twice."
        )?;
        for device in devices {
            writeln!(out, "\n{}\n    {}", device.name, device.about)?;
            if let Some(here) = device.here {
                writeln!(out, "    on this system: {here}")?;
            }
            for Parameter { name, accepts, default, about } in device.parameters {
                let default = default.map_or_else(String::new, |value| format!("={value}"));
                writeln!(out, "      {:24} {accepts}\n          {about}", format!("{name}{default}"))?;
            }
        }
        Ok(())
    }
}
