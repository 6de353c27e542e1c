"""Bills of materials (CycloneDX ML-BOM): written from measurements, and checked against weights."""
