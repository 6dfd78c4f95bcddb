#!/bin/sh
cat > /app/median.py <<'EOF'
import sys

numbers = sorted(float(line) for line in open(sys.argv[1]) if line.strip())
if not numbers:
    print("none")
    sys.exit(1)
middle = len(numbers) // 2
median = numbers[middle] if len(numbers) % 2 else (numbers[middle - 1] + numbers[middle]) / 2
print(int(median) if median == int(median) else median)
EOF
