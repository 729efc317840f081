"""What holds of sizes: exact decisions on comparisons of sums, quotients, remainders, minima and maxima."""
