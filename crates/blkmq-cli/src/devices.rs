//! `blkmq devices`: what each device is, and its parameters.

use std::io::Write;

use blkmq::driver::spec::{DeviceDescription, Parameter};
use clap::Args;
use serde_json::{Value, json};

use blkmq_program::{Failure, json};

/// Explain each device and its parameters.
#[derive(Debug, Args)]
#[command(after_help = blkmq_program::after_help(include_str!("help/devices.txt")))]
pub(crate) struct Devices {
    /// Print one JSON object instead of words.
    #[arg(long)]
    json: bool,
}

/// A device as JSON. `here` is null if the device needs nothing of this system, `default` if a parameter has none.
fn value(device: &DeviceDescription) -> Value {
    let parameter = |Parameter { name, accepts, default, about, .. }: &Parameter| {
        let default = Some(default).filter(|default| !default.is_empty());
        json!({ "name": name, "accepts": accepts.to_string(), "default": default, "about": about })
    };
    let parameters: Vec<_> = device.parameters.iter().map(parameter).collect();
    json!({ "name": device.name, "about": device.about, "here": device.offers(), "parameters": parameters })
}

impl Devices {
    pub(crate) fn run(&self, out: &mut dyn Write) -> Result<(), Failure> {
        let devices = blkmq_drivers::devices();
        if self.json {
            return json::print(&devices.iter().map(value).collect::<Vec<_>>(), out);
        }
        writeln!(
            out,
            "A spec names a device and then its parameters: null,hw_queue_depth=1,irqmode=2. A file may be named by its path\n\
             alone: disk.img, file:disk.img and file,path=disk.img are one device. A comma in a path is written twice."
        )?;
        for device in devices {
            writeln!(out, "\n{}\n    {}", device.name, device.about)?;
            if let Some(here) = device.offers() {
                writeln!(out, "    on this system: {here}")?;
            }
            for Parameter { name, accepts, default, about, .. } in device.parameters {
                let default = if default.is_empty() { String::new() } else { format!("={default}") };
                writeln!(out, "      {:24} {accepts}\n          {about}", format!("{name}{default}"))?;
            }
        }
        Ok(())
    }
}
