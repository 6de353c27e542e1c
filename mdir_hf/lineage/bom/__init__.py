"""Bills of materials (CycloneDX ML-BOM): written from what was measured, and checked against weights."""
