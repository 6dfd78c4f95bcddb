#!/bin/bash
if python3 /tests/check.py; then reward=1; else reward=0; fi
echo "{\"reward\": $reward}" > /logs/verifier/reward.json
